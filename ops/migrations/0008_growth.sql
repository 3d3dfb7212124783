-- Growth: what keeps a wish as quick on a long task, and every statement on a full store, as on a new one.

-- Where the fold of a long stream may begin. A help and no truth: it may be missing, and whoever cannot use it folds all
-- events. `shape` says for which release it was made. It is sealed as the events are.
CREATE TABLE outlast.task_snapshots (
    task_id text   PRIMARY KEY,
    version bigint NOT NULL,
    shape   text   NOT NULL,
    state   bytea  NOT NULL
);

-- It goes with the view row, whoever takes that away, and so before anything of the task is erased.
CREATE FUNCTION outlast.drop_snapshots() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM outlast.task_snapshots s USING gone g WHERE s.task_id = g.task_id;
    RETURN NULL;
END $$;
CREATE TRIGGER drop_snapshots AFTER DELETE ON outlast.task_view REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION outlast.drop_snapshots();

-- A vacuum and fresh statistics after a fiftieth of a table has changed, not after a fifth: where tasks are forgotten as
-- fast as they come, what is dead would else lie at the very end of the indexes that the sweep and the cursors begin at.
-- What is only added is frozen in small steps for the same reason, and index-only scans find their pages marked.
ALTER TABLE outlast.task_events SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
ALTER TABLE outlast.past_events SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
ALTER TABLE outlast.audit_leaves SET (autovacuum_vacuum_insert_scale_factor = 0.05);
ALTER TABLE outlast.task_view SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE outlast.past_tasks SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE outlast.data_keys SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- A store has few owners and the next one many. Whoever asks for one owner's events goes by that owner's index, and not
-- along the whole log until enough of them have come by.
ALTER TABLE outlast.task_events ALTER COLUMN owner SET (n_distinct = 100000);
ALTER TABLE outlast.past_tasks ALTER COLUMN owner SET (n_distinct = 100000);
