-- Jobs that are looked at: a look is short, and needs no slot of the worker that takes it. So who has none free may still
-- claim looks, and those alone.

ALTER TABLE outlast.run_queue ADD COLUMN is_look boolean NOT NULL DEFAULT false;
CREATE INDEX run_queue_looks ON outlast.run_queue (due) WHERE is_look;

-- The append has put the row before. From then on it goes from look to look, until the task ends.
CREATE FUNCTION outlast.mark_look() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan TO off AS $$
BEGIN
    UPDATE outlast.run_queue SET is_look = true WHERE task_id = NEW.originator_id;
    RETURN NULL;
END $$;
CREATE TRIGGER task_followed AFTER INSERT ON outlast.task_events
    FOR EACH ROW WHEN (NEW.topic = 'task.work_followed') EXECUTE FUNCTION outlast.mark_look();

-- Leases up to `most` looks that are due to `claimer`, oldest first. Whose they are does not matter: each owner has as
-- many as it has jobs, and each job has its time between two looks.
CREATE FUNCTION outlast.claim_looks(claimer text, most integer, lease_s double precision, takes_lapsed boolean)
RETURNS TABLE (claimed_id text, claimed_due timestamptz)
LANGUAGE sql VOLATILE SET enable_seqscan TO off SET enable_bitmapscan TO off AS $$
    WITH found AS MATERIALIZED (
        SELECT q.task_id FROM outlast.run_queue q
        WHERE q.is_look AND q.due <= clock_timestamp()
            AND (q.worker IS NULL OR (takes_lapsed AND q.lease_until < clock_timestamp()))
        ORDER BY q.due LIMIT most FOR UPDATE SKIP LOCKED
    )
    UPDATE outlast.run_queue q
    SET worker = claimer, lease_until = clock_timestamp() + make_interval(secs => lease_s)
    FROM found WHERE q.task_id = found.task_id RETURNING q.task_id, q.due
$$;
