-- Dispatch without polling: whatever may be claimed from now on is told of, or stands in the queue with its time.

-- When the next free task is due. Claims go by `run_queue_free`, owner by owner.
CREATE INDEX run_queue_next ON outlast.run_queue (due) WHERE worker IS NULL;

-- A lease that is given up makes room, where an owner may have so many tasks run at once, or the task itself is free
-- again: who waits for work is told, if this owner has any. Within a commit that puts a task as well, it is told once.
CREATE FUNCTION outlast.tell_of_room() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan TO off AS $$
BEGIN
    PERFORM 1 FROM outlast.run_queue q
    WHERE q.worker IS NULL AND q.owner = OLD.owner AND q.due <= clock_timestamp() LIMIT 1;
    IF FOUND THEN
        PERFORM pg_notify('task_runnable', '');
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER run_queue_left AFTER DELETE ON outlast.run_queue
    FOR EACH ROW WHEN (OLD.worker IS NOT NULL) EXECUTE FUNCTION outlast.tell_of_room();
CREATE TRIGGER run_queue_freed AFTER UPDATE OF worker ON outlast.run_queue
    FOR EACH ROW WHEN (OLD.worker IS NOT NULL AND NEW.worker IS NULL) EXECUTE FUNCTION outlast.tell_of_room();

-- Seconds until a claim of this worker may find more than now, if nobody tells of it: none while another holds a lease,
-- which may run out at any time, or one of its own has, because it let go of it; else until the next free task is due; NULL when none is.
CREATE FUNCTION outlast.quiet_seconds(asker text) RETURNS double precision
LANGUAGE sql VOLATILE SET enable_seqscan TO off SET enable_bitmapscan TO off AS $$
    SELECT CASE
        WHEN EXISTS (SELECT FROM outlast.run_queue q
            WHERE q.worker IS NOT NULL AND (q.worker <> asker OR q.lease_until < now())) THEN 0
        ELSE extract(epoch FROM (SELECT min(q.due) FROM outlast.run_queue q WHERE q.worker IS NULL AND q.due > now())
            - now())::float8
    END
$$;

-- As before, for many that are due. Where few are, they are looked through by themselves: owners whose tasks only wait
-- for their time cost nothing then, however many they are.
ALTER FUNCTION outlast.waiting_owners(bytea, timestamptz, integer, bigint) RENAME TO walk_owners;
CREATE FUNCTION outlast.waiting_owners(place bytea, at timestamptz, most integer, most_running bigint) RETURNS bytea[]
LANGUAGE plpgsql STABLE SET enable_seqscan TO off SET enable_bitmapscan TO off AS $$
DECLARE
    few constant integer := 256;
    owners bytea[] := ARRAY(
        SELECT q.owner FROM outlast.run_queue q WHERE q.worker IS NULL AND q.due <= at ORDER BY q.due LIMIT few);
BEGIN
    IF cardinality(owners) = few THEN
        RETURN outlast.walk_owners(place, at, most, most_running);
    END IF;
    RETURN ARRAY(
        SELECT o.owner FROM (SELECT DISTINCT unnest(owners) AS owner) o
        WHERE outlast.has_room(o.owner, most_running) ORDER BY o.owner <= place, o.owner LIMIT most);
END $$;
