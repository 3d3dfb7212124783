-- Tasks that wait for an answer, in the order in which they began to: no view row knows since when. So an inbox costs as
-- much as it shows, however many tasks are stored.

CREATE TABLE outlast.open_requests (
    task_id text PRIMARY KEY,
    owner   bytea NOT NULL,
    since   timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
CREATE INDEX open_requests_since ON outlast.open_requests (since, task_id);
CREATE INDEX open_requests_owner ON outlast.open_requests (owner, since, task_id);

-- It follows the view row, in the same transaction, whoever writes that: an append, a rebuild, an older release.
CREATE FUNCTION outlast.note_open_request() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan TO off AS $$
BEGIN
    IF NEW.status = 'input_required' THEN
        INSERT INTO outlast.open_requests (task_id, owner) VALUES (NEW.task_id, outlast.owner_hash(NEW.owner))
        ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM outlast.open_requests WHERE task_id = NEW.task_id;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER open_request_changed AFTER UPDATE OF status ON outlast.task_view FOR EACH ROW
WHEN (OLD.status <> NEW.status AND 'input_required' IN (OLD.status, NEW.status))
EXECUTE FUNCTION outlast.note_open_request();
CREATE TRIGGER open_request_inserted AFTER INSERT ON outlast.task_view FOR EACH ROW
WHEN (NEW.status = 'input_required') EXECUTE FUNCTION outlast.note_open_request();

CREATE FUNCTION outlast.drop_open_requests() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan TO off AS $$
BEGIN
    DELETE FROM outlast.open_requests r USING gone g WHERE r.task_id = g.task_id;
    RETURN NULL;
END $$;
CREATE TRIGGER drop_open_requests AFTER DELETE ON outlast.task_view REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION outlast.drop_open_requests();

INSERT INTO outlast.open_requests (task_id, owner, since)
SELECT v.task_id, outlast.owner_hash(v.owner), coalesce(
    (SELECT max(e.recorded_at) FROM outlast.task_events e
     WHERE e.originator_id = v.task_id AND e.topic = 'task.input_requested'), v.created_at)
FROM outlast.task_view v WHERE v.status = 'input_required'
ON CONFLICT DO NOTHING;
