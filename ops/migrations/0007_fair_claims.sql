-- Fair claims: workers go round the owners, so that ten thousand waiting tasks of one are not in the way of another's one.

-- Rows without an owner are from before owners stood in the queue: they go round as one.
UPDATE outlast.run_queue SET owner = '' WHERE owner IS NULL;
ALTER TABLE outlast.run_queue ALTER COLUMN owner SET DEFAULT '', ALTER COLUMN owner SET NOT NULL;

-- What is free, oldest first inside an owner; and what is held. A lease that is prolonged touches neither.
CREATE INDEX run_queue_free ON outlast.run_queue (owner, due) WHERE worker IS NULL;
CREATE INDEX run_queue_held ON outlast.run_queue (owner) WHERE worker IS NOT NULL;
DROP INDEX outlast.run_queue_due;

-- Whether an owner may have one more task run.
CREATE FUNCTION outlast.has_room(whose bytea, most_running bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT most_running IS NULL OR most_running > (
        SELECT count(*) FROM outlast.run_queue h WHERE h.worker IS NOT NULL AND h.owner = whose)
$$;

-- The owners of free tasks that are due and may run, each once, at most `most` of them: those behind `place` first, then
-- the others. From one to the next by the index, whatever number of tasks each of them has.
CREATE FUNCTION outlast.waiting_owners(place bytea, at timestamptz, most integer, most_running bigint) RETURNS bytea[]
LANGUAGE sql STABLE SET enable_seqscan TO off SET enable_bitmapscan TO off SET enable_sort TO off AS $$
    WITH RECURSIVE behind AS (
        (SELECT q.owner, q.due FROM outlast.run_queue q
            WHERE q.worker IS NULL AND q.owner > place ORDER BY q.owner, q.due LIMIT 1)
        UNION ALL
        SELECT n.owner, n.due FROM behind b CROSS JOIN LATERAL (
            SELECT q.owner, q.due FROM outlast.run_queue q
            WHERE q.worker IS NULL AND q.owner > b.owner ORDER BY q.owner, q.due LIMIT 1) n
    ), before AS (
        (SELECT q.owner, q.due FROM outlast.run_queue q
            WHERE q.worker IS NULL AND q.owner <= place ORDER BY q.owner, q.due LIMIT 1)
        UNION ALL
        SELECT n.owner, n.due FROM before b CROSS JOIN LATERAL (
            SELECT q.owner, q.due FROM outlast.run_queue q
            WHERE q.worker IS NULL AND q.owner > b.owner AND q.owner <= place ORDER BY q.owner, q.due LIMIT 1) n
    )
    SELECT coalesce(array_agg(r.owner), '{}') FROM (
        (SELECT b.owner FROM behind b WHERE b.due <= at AND outlast.has_room(b.owner, most_running) LIMIT most)
        UNION ALL
        (SELECT b.owner FROM before b WHERE b.due <= at AND outlast.has_room(b.owner, most_running) LIMIT most)
        LIMIT most
    ) r
$$;

-- Leases up to `most` due tasks to `claimer`, in equal shares of the owners that come next behind `place`; inside an
-- owner what was begun before and is held by nobody alive first (only if `takes_lapsed`), then the oldest. Rows come in
-- the order of the turns: who claims again names the last one's owner as its place.
--
-- With `most_running`, an owner gets no free task beyond so many held ones. They are counted under a lock of its own;
-- while another claim counts, this one passes the owner by. Nothing here waits.
CREATE FUNCTION outlast.claim_tasks(
    claimer text, most integer, lease_s double precision, place bytea, most_running bigint, takes_lapsed boolean
) RETURNS TABLE (claimed_id text, claimed_due timestamptz, claimed_owner bytea)
LANGUAGE plpgsql SET enable_seqscan TO off SET enable_bitmapscan TO off AS $$
DECLARE
    at timestamptz := clock_timestamp();
    ends timestamptz := at + make_interval(secs => lease_s);
    lapsed bytea[] := '{}';
    spare constant integer := 16; -- owners beyond those needed, for when all that one has is locked just now
    ring bytea[] := outlast.waiting_owners(place, at, most + spare, most_running);
    again bytea[];
    next_owner bytea;
    share integer;
    room bigint;
    got integer;
    taken integer;
    missing integer := most;
BEGIN
    IF takes_lapsed THEN
        lapsed := ARRAY(SELECT DISTINCT q.owner FROM outlast.run_queue q
            WHERE q.worker IS NOT NULL AND q.lease_until < at AND q.due <= at);
        IF lapsed <> '{}' THEN
            ring := ARRAY(SELECT o.owner FROM (SELECT DISTINCT unnest(ring || lapsed) AS owner) o
                ORDER BY o.owner <= place, o.owner LIMIT most + spare);
        END IF;
    END IF;
    WHILE missing > 0 AND ring <> '{}' LOOP
        share := greatest(1, missing / cardinality(ring));
        again := '{}';
        FOREACH next_owner IN ARRAY ring LOOP
            EXIT WHEN missing = 0;
            share := least(share, missing);
            taken := 0;
            IF next_owner = ANY (lapsed) THEN
                RETURN QUERY
                WITH found AS MATERIALIZED (
                    SELECT q.task_id FROM outlast.run_queue q
                    WHERE q.worker IS NOT NULL AND q.owner = next_owner AND q.lease_until < at AND q.due <= at
                    ORDER BY q.due LIMIT share FOR UPDATE SKIP LOCKED)
                UPDATE outlast.run_queue q SET worker = claimer, lease_until = ends
                FROM found WHERE q.task_id = found.task_id RETURNING q.task_id, q.due, q.owner;
                GET DIAGNOSTICS taken = ROW_COUNT;
            END IF;
            room := share - taken;
            IF room > 0 AND most_running IS NOT NULL THEN
                room := 0;
                IF pg_try_advisory_xact_lock(7710429, hashtext(encode(next_owner, 'hex'))) THEN
                    SELECT least(share - taken, most_running - count(*)) INTO room FROM outlast.run_queue q
                    WHERE q.worker IS NOT NULL AND q.owner = next_owner;
                END IF;
            END IF;
            IF room > 0 THEN
                RETURN QUERY
                WITH found AS MATERIALIZED (
                    SELECT q.task_id FROM outlast.run_queue q
                    WHERE q.worker IS NULL AND q.owner = next_owner AND q.due <= at
                    ORDER BY q.due LIMIT room FOR UPDATE SKIP LOCKED)
                UPDATE outlast.run_queue q SET worker = claimer, lease_until = ends
                FROM found WHERE q.task_id = found.task_id RETURNING q.task_id, q.due, q.owner;
                GET DIAGNOSTICS got = ROW_COUNT;
                taken := taken + got;
            END IF;
            missing := missing - taken;
            IF taken = share THEN
                again := again || next_owner;
            END IF;
        END LOOP;
        ring := again;
    END LOOP;
END $$;
