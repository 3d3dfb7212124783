-- Retention: what is past can be erased for good, and the log says so.

-- By what names the owners of past tasks are known, for as long as something of theirs is there to be erased. Tasks that
-- clients may ask for have the name in their view.
CREATE TABLE outlast.past_owners (
    owner bytea PRIMARY KEY,
    name  text NOT NULL
);

CREATE FUNCTION outlast.keep_owner_names() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Written over, and not passed over: whoever is about to drop the name has to see this task first.
    INSERT INTO outlast.past_owners (owner, name)
    SELECT DISTINCT outlast.owner_hash(g.owner), g.owner FROM gone g ORDER BY 1
    ON CONFLICT (owner) DO UPDATE SET name = EXCLUDED.name;
    RETURN NULL;
END $$;
CREATE TRIGGER keep_owner_names AFTER DELETE ON outlast.task_view REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION outlast.keep_owner_names();

CREATE FUNCTION outlast.drop_owner_names(owners bytea[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- A statement of its own: the next one then sees every task that was forgotten before.
    PERFORM 1 FROM outlast.past_owners WHERE owner = ANY (owners) ORDER BY owner FOR UPDATE;
    DELETE FROM outlast.past_owners o WHERE o.owner = ANY (owners) AND NOT EXISTS (
        SELECT 1 FROM outlast.past_tasks t WHERE t.owner = o.owner AND t.erased_at IS NULL);
END $$;

-- Erases past tasks, each once: key and payloads are gone, and an event at a position of its own says so. The lock that
-- keeps commit order is taken for that insert; the names come last, for who forgets a task holds them last as well. Any
-- other id is ignored.
CREATE FUNCTION outlast.erase_tasks(ids text[], why text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    erasing text[];
    versions bigint[];
    owners bytea[];
    instant timestamptz;
    said bytea;
BEGIN
    WITH found AS MATERIALIZED (
        SELECT task_id, owner FROM outlast.past_tasks WHERE task_id = ANY (ids) AND erased_at IS NULL
        ORDER BY task_id FOR UPDATE
    )
    SELECT array_agg(f.task_id ORDER BY f.task_id), array_agg(DISTINCT f.owner), array_agg((
        SELECT coalesce(max(e.originator_version), 0) FROM outlast.past_events e WHERE e.originator_id = f.task_id)
        ORDER BY f.task_id)
    INTO erasing, owners, versions FROM found f;
    IF erasing IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM 1 FROM outlast.data_keys WHERE task_id = ANY (erasing) ORDER BY task_id FOR UPDATE;
    DELETE FROM outlast.data_keys WHERE task_id = ANY (erasing);
    UPDATE outlast.past_events SET state = '' WHERE originator_id = ANY (erasing);

    PERFORM pg_advisory_xact_lock(7710428, 1);
    instant := clock_timestamp();
    said := convert_to(json_build_object(
        'at', to_char(instant AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), 'why', why)::text, 'UTF8');
    INSERT INTO outlast.past_events (originator_id, originator_version, topic, state, event_id, notification_id,
        recorded_at, digest)
    SELECT v.task_id, v.version + 1, 'task.erased', said, gen_random_uuid(),
        nextval(pg_get_serial_sequence('outlast.task_events', 'notification_id')), instant, sha256(said)
    FROM unnest(erasing, versions) AS v(task_id, version);
    UPDATE outlast.past_tasks SET erased_at = instant WHERE task_id = ANY (erasing);
    PERFORM outlast.drop_owner_names(owners);
    RETURN cardinality(erasing);
END $$;

-- Removes the subscriptions of an owner without a farewell, with what waits for them and what was noted of them. Under
-- the lock of the appends: one that has not seen this would queue something more.
CREATE FUNCTION outlast.drop_webhooks(p_owner text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    dropped text[];
BEGIN
    PERFORM pg_advisory_xact_lock(7710428, 1);
    WITH gone AS (
        DELETE FROM outlast.webhook_subscriptions
        WHERE owner_hash = outlast.owner_hash(p_owner) AND owner = p_owner RETURNING id
    )
    SELECT array_agg(id) INTO dropped FROM gone;
    DELETE FROM outlast.webhook_deliveries WHERE subscription_id = ANY (dropped);
    DELETE FROM outlast.webhook_attempts WHERE subscription_id = ANY (dropped);
    DELETE FROM outlast.webhook_endpoints e
    WHERE NOT EXISTS (SELECT 1 FROM outlast.webhook_subscriptions s WHERE s.url = e.url);
    RETURN coalesce(cardinality(dropped), 0);
END $$;
