-- Audit, retention and quotas: what clients may no longer ask for is archived and not deleted, every event has a digest
-- that outlives its payload, each task has a data key, and each owner's use is counted where it changes.

-- The digest of what is stored, so that proofs hold after the payload is erased.
ALTER TABLE outlast.task_events ADD COLUMN digest bytea;
UPDATE outlast.task_events SET digest = sha256(state);
ALTER TABLE outlast.task_events ALTER COLUMN digest SET NOT NULL;

-- The events of tasks that clients may no longer ask for, at the positions they always had. `state` is empty once it is
-- erased; what stays says what happened when, to whose task, and its digest.
CREATE TABLE outlast.past_events (
    originator_id      text   NOT NULL,
    originator_version bigint NOT NULL,
    topic              text   NOT NULL,
    state              bytea  NOT NULL,
    event_id           uuid   NOT NULL,
    notification_id    bigint NOT NULL,
    recorded_at        timestamptz NOT NULL,
    owner              bytea,
    tool               text,
    status             text,
    digest             bytea  NOT NULL,
    PRIMARY KEY (originator_id, originator_version)
);
CREATE UNIQUE INDEX past_events_notification_id_idx ON outlast.past_events (notification_id);

CREATE TABLE outlast.past_tasks (
    task_id     text PRIMARY KEY,
    owner       bytea NOT NULL,
    tool        text NOT NULL,
    status      text NOT NULL,
    created_at  timestamptz NOT NULL,
    archived_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    erased_at   timestamptz
);
CREATE INDEX past_tasks_to_erase ON outlast.past_tasks (archived_at) WHERE erased_at IS NULL;
CREATE INDEX past_tasks_owner ON outlast.past_tasks (owner);

-- The data key of each task, wrapped by a key from outside. To destroy it is to erase all that it sealed.
CREATE TABLE outlast.data_keys (
    task_id     text PRIMARY KEY,
    wrapped     bytea NOT NULL,
    wrapped_by  text NOT NULL
);
CREATE INDEX data_keys_wrapped_by ON outlast.data_keys (wrapped_by);

ALTER TABLE outlast.run_queue ADD COLUMN owner bytea;
UPDATE outlast.run_queue q SET owner = outlast.owner_hash(v.owner)
FROM outlast.task_view v WHERE v.task_id = q.task_id;

-- What each owner has stored now; the row of the empty owner is the sum of all.
CREATE TABLE outlast.owner_usage (
    owner   bytea PRIMARY KEY,
    tasks   bigint NOT NULL DEFAULT 0,
    working bigint NOT NULL DEFAULT 0,
    parked  bigint NOT NULL DEFAULT 0,
    bytes   bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);

CREATE FUNCTION outlast.count_usage() RETURNS void LANGUAGE sql AS $$
    DELETE FROM outlast.owner_usage;
    WITH counted AS (
        SELECT outlast.owner_hash(v.owner) AS owner, count(*) AS tasks,
            count(*) FILTER (WHERE v.status = 'working') AS working,
            count(*) FILTER (WHERE v.status = 'input_required') AS parked,
            sum((SELECT sum(length(e.state)) FROM outlast.task_events e WHERE e.originator_id = v.task_id)) AS bytes
        FROM outlast.task_view v GROUP BY 1
    )
    INSERT INTO outlast.owner_usage (owner, tasks, working, parked, bytes)
    SELECT owner, tasks, working, parked, coalesce(bytes, 0) FROM counted
    UNION ALL
    SELECT '', coalesce(sum(tasks), 0), coalesce(sum(working), 0), coalesce(sum(parked), 0), coalesce(sum(bytes), 0)
    FROM counted
$$;
SELECT outlast.count_usage();

-- Adds to what owners use, each in its own row and all in the row of the sum. Whoever calls it waits for no other row
-- afterwards, so that no two wait for each other.
CREATE FUNCTION outlast.add_usage(
    owners bytea[], d_tasks bigint[], d_working bigint[], d_parked bigint[], d_bytes bigint[]
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO outlast.owner_usage AS u (owner, tasks, working, parked, bytes)
    SELECT d.owner, sum(d.tasks), sum(d.working), sum(d.parked), sum(d.bytes)
    FROM (
        SELECT * FROM unnest(owners, d_tasks, d_working, d_parked, d_bytes) AS own(owner, tasks, working, parked, bytes)
        UNION ALL
        SELECT '', * FROM unnest(d_tasks, d_working, d_parked, d_bytes) AS every(tasks, working, parked, bytes)
    ) d
    GROUP BY d.owner ORDER BY d.owner
    ON CONFLICT (owner) DO UPDATE
    SET tasks = u.tasks + EXCLUDED.tasks, working = u.working + EXCLUDED.working,
        parked = u.parked + EXCLUDED.parked, bytes = u.bytes + EXCLUDED.bytes
$$;

-- As before, and: the digest of each event, the data key of a task that is opened (`data_keys`, NULL for the others;
-- `wrapped_by` names the key around them), the owner in the queue, and the quotas. `former` is each task's status
-- before. `most` has at most so many tasks, working, parked and bytes: of one owner, then of all; NULL for no limit.
-- SQLSTATE OL430: a task was to be opened beyond one of them; the constraint is its number in `most`.
CREATE FUNCTION outlast.append_events(
    ids text[], versions bigint[], topics text[], states bytea[], event_ids uuid[], event_statuses text[],
    task_ids text[], expected bigint[], task_versions bigint[], owners text[], tools text[], statuses text[],
    created timestamptz[], expires timestamptz[], idempotency_keys text[], call_digests text[], wires bytea[],
    queueings text[], workers text[], dues timestamptz[], lease_s double precision,
    former text[], data_keys bytea[], wrapped_by text, most bigint[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    moved integer;
    queued integer;
    positions bigint[];
    reached integer;
BEGIN
    INSERT INTO outlast.task_view
        (task_id, version, owner, tool, status, created_at, expires_at, idempotency_key, call_digest, wire)
    SELECT v.task_id, v.version, v.owner, v.tool, v.status, v.created, v.expires, v.key, v.digest, v.wire
    FROM unnest(task_ids, expected, task_versions, owners, tools, statuses, created, expires,
                idempotency_keys, call_digests, wires)
        AS v(task_id, expected, version, owner, tool, status, created, expires, key, digest, wire)
    WHERE v.expected = 0
    ORDER BY v.task_id;

    WITH locked AS MATERIALIZED (
        SELECT t.task_id FROM outlast.task_view t WHERE t.task_id = ANY (task_ids) ORDER BY t.task_id FOR UPDATE
    )
    UPDATE outlast.task_view t
    SET version = v.version, status = v.status, expires_at = v.expires, wire = v.wire
    FROM unnest(task_ids, expected, task_versions, statuses, expires, wires)
        AS v(task_id, expected, version, status, expires, wire), locked
    WHERE t.task_id = v.task_id AND locked.task_id = v.task_id AND v.expected > 0 AND t.version = v.expected;
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF moved <> (SELECT count(*) FROM unnest(expected) AS e WHERE e > 0) THEN
        RAISE EXCEPTION 'stale version' USING ERRCODE = 'OL409';
    END IF;

    INSERT INTO outlast.data_keys (task_id, wrapped, wrapped_by)
    SELECT v.task_id, v.data_key, append_events.wrapped_by
    FROM unnest(task_ids, data_keys) AS v(task_id, data_key)
    WHERE v.data_key IS NOT NULL ORDER BY v.task_id;

    DELETE FROM outlast.run_queue q USING unnest(task_ids, queueings) AS v(task_id, queueing)
    WHERE q.task_id = v.task_id AND v.queueing = 'drop';
    INSERT INTO outlast.run_queue AS q (task_id, owner, due, worker, lease_until)
    SELECT v.task_id, outlast.owner_hash(v.owner),
        CASE WHEN v.queueing = 'wait' THEN v.due ELSE clock_timestamp() END,
        CASE WHEN v.queueing = 'lease' THEN v.worker END,
        CASE WHEN v.queueing = 'lease' THEN clock_timestamp() + make_interval(secs => lease_s) END
    FROM unnest(task_ids, owners, queueings, workers, dues) AS v(task_id, owner, queueing, worker, due)
    WHERE v.queueing IN ('put', 'lease', 'wait') ORDER BY v.task_id
    ON CONFLICT (task_id) DO UPDATE
    SET owner = EXCLUDED.owner, due = EXCLUDED.due, worker = EXCLUDED.worker, lease_until = EXCLUDED.lease_until;

    -- A statement of its own: the next one then sees every subscription that was stored under this lock before.
    PERFORM pg_advisory_xact_lock(7710428, 1);
    WITH inserted AS (
        INSERT INTO outlast.task_events
            (originator_id, originator_version, topic, state, event_id, owner, tool, status, digest)
        SELECT e.id, e.version, e.topic, e.state, e.event_id,
            outlast.owner_hash(v.owner), v.tool, coalesce(e.status, v.status), sha256(e.state)
        FROM unnest(ids, versions, topics, states, event_ids, event_statuses) WITH ORDINALITY
            AS e(id, version, topic, state, event_id, status, place)
        JOIN unnest(task_ids, owners, tools, statuses) AS v(task_id, owner, tool, status) ON v.task_id = e.id
        ORDER BY e.place
        RETURNING notification_id, originator_id, originator_version, owner, topic, tool, status
    ), told AS (
        INSERT INTO outlast.webhook_deliveries (subscription_id, url, position, task_id, version)
        SELECT s.id, s.url, i.notification_id, i.originator_id, i.originator_version
        FROM inserted i CROSS JOIN LATERAL (
            SELECT * FROM outlast.webhook_subscriptions a WHERE a.owner_hash = i.owner AND a.task_ids IS NULL
            UNION ALL
            SELECT * FROM outlast.webhook_subscriptions b
            WHERE b.task_ids @> ARRAY[i.originator_id] AND b.owner_hash = i.owner
        ) s
        WHERE s.is_active AND s.ending IS NULL
            AND (s.refresh_before IS NULL OR s.refresh_before > clock_timestamp())
            AND outlast.is_wanted(s.name, s.tools, s.statuses, i.topic, i.tool, i.status)
        ORDER BY i.notification_id
        RETURNING 1
    )
    SELECT array_agg(notification_id ORDER BY notification_id), (SELECT count(*) FROM told)
    INTO positions, queued FROM inserted;

    PERFORM outlast.add_usage(array_agg(d.owner), array_agg(d.tasks), array_agg(d.working), array_agg(d.parked),
        array_agg(d.bytes))
    FROM (
        SELECT outlast.owner_hash(v.owner) AS owner, (v.expected = 0)::int::bigint AS tasks,
            (v.status = 'working')::int::bigint - (coalesce(v.former, '') = 'working')::int AS working,
            (v.status = 'input_required')::int::bigint - (coalesce(v.former, '') = 'input_required')::int AS parked,
            (SELECT sum(length(e.state))::bigint FROM unnest(ids, states) AS e(id, state) WHERE e.id = v.task_id)
                AS bytes
        FROM unnest(task_ids, owners, expected, statuses, former) AS v(task_id, owner, expected, status, former)
    ) d;
    IF most IS NOT NULL AND 0 = ANY (expected) THEN
        SELECT l.number INTO reached
        FROM unnest(most) WITH ORDINALITY AS l(most, number)
        JOIN outlast.owner_usage u ON (u.owner = '') = (l.number > 4)
        WHERE u.owner = ANY (''::bytea || ARRAY(
            SELECT DISTINCT outlast.owner_hash(v.owner) FROM unnest(owners, expected) AS v(owner, expected)
            WHERE v.expected = 0))
            AND l.most < (ARRAY[u.tasks, u.working, u.parked, u.bytes])[((l.number - 1) % 4 + 1)::integer]
        ORDER BY l.number LIMIT 1;
        IF reached IS NOT NULL THEN
            RAISE EXCEPTION 'quota' USING ERRCODE = 'OL430', CONSTRAINT = reached::text;
        END IF;
    END IF;

    IF 'completed' = ANY (statuses) OR 'failed' = ANY (statuses) OR 'cancelled' = ANY (statuses) THEN
        queued := queued + outlast.end_followed(task_ids);
    END IF;

    PERFORM pg_notify('task_moved', v.task_id || ':' || v.version || ':'
        || encode(sha256(convert_to(v.owner, 'UTF8')), 'hex'))
    FROM unnest(task_ids, task_versions, owners) AS v(task_id, version, owner);
    IF 'put' = ANY (queueings) THEN
        PERFORM pg_notify('task_runnable', '');
    END IF;
    IF queued > 0 THEN
        PERFORM pg_notify('webhook_due', '');
    END IF;
    RETURN positions;
END $$;

-- The call of the release before this one, for as long as one of its processes still runs. It seals nothing, knows no
-- quotas, and what it does not say of statuses before is counted anew by `outlast db rebuild`.
CREATE OR REPLACE FUNCTION outlast.append_events(
    ids text[], versions bigint[], topics text[], states bytea[], event_ids uuid[], event_statuses text[],
    task_ids text[], expected bigint[], task_versions bigint[], owners text[], tools text[], statuses text[],
    created timestamptz[], expires timestamptz[], idempotency_keys text[], call_digests text[], wires bytea[],
    queueings text[], workers text[], dues timestamptz[], lease_s double precision
) RETURNS bigint[] LANGUAGE sql AS $$
    SELECT outlast.append_events(
        ids, versions, topics, states, event_ids, event_statuses, task_ids, expected, task_versions, owners, tools,
        statuses, created, expires, idempotency_keys, call_digests, wires, queueings, workers, dues, lease_s,
        (SELECT array_agg(t.status ORDER BY v.place)
            FROM unnest(task_ids) WITH ORDINALITY AS v(task_id, place)
            LEFT JOIN outlast.task_view t USING (task_id)),
        NULL, NULL, NULL)
$$;

-- As before, but the events are archived, and the data key stays until the payload is to be erased.
CREATE OR REPLACE FUNCTION outlast.forget_tasks(ids text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    forgotten record;
BEGIN
    PERFORM 1 FROM outlast.task_view WHERE task_id = ANY (ids) ORDER BY task_id FOR UPDATE;
    PERFORM 1 FROM outlast.run_queue WHERE task_id = ANY (ids) ORDER BY task_id FOR UPDATE;
    DELETE FROM outlast.run_queue WHERE task_id = ANY (ids);
    WITH cut AS (
        DELETE FROM outlast.webhook_deliveries WHERE task_id = ANY (ids) RETURNING subscription_id, url
    ), missed AS (
        SELECT s.id, s.url FROM outlast.webhook_subscriptions s
        WHERE s.backlog_from IS NOT NULL AND s.ending IS NULL AND EXISTS (
            SELECT 1 FROM outlast.task_events e
            WHERE e.originator_id = ANY (ids) AND e.owner = s.owner_hash AND e.notification_id > s.backlog_from
                AND (s.task_ids IS NULL OR e.originator_id = ANY (s.task_ids))
                AND outlast.is_wanted(s.name, s.tools, s.statuses, e.topic, e.tool, e.status))
    )
    INSERT INTO outlast.webhook_deliveries (subscription_id, url, envelope, position)
    SELECT subscription_id, url, 'gap', 0 FROM cut UNION SELECT id, url, 'gap', 0 FROM missed
    ORDER BY 1 ON CONFLICT DO NOTHING;
    WITH gone AS (
        DELETE FROM outlast.task_events WHERE originator_id = ANY (ids) RETURNING *
    ), archived AS (
        INSERT INTO outlast.past_events (originator_id, originator_version, topic, state, event_id, notification_id,
            recorded_at, owner, tool, status, digest)
        SELECT originator_id, originator_version, topic, state, event_id, notification_id,
            recorded_at, owner, tool, status, digest FROM gone
    )
    INSERT INTO outlast.removed_events AS r (owner, removed_to)
    SELECT owner, max(notification_id) FROM gone WHERE owner IS NOT NULL GROUP BY owner ORDER BY owner
    ON CONFLICT (owner) DO UPDATE SET removed_to = greatest(r.removed_to, EXCLUDED.removed_to);
    -- The rows that count come last and nothing is waited for after them, so that no lock is needed beside theirs.
    WITH gone AS (
        DELETE FROM outlast.task_view WHERE task_id = ANY (ids) RETURNING *
    ), archived AS (
        INSERT INTO outlast.past_tasks (task_id, owner, tool, status, created_at)
        SELECT task_id, outlast.owner_hash(owner), tool, status, created_at FROM gone
    )
    SELECT outlast.add_usage(array_agg(outlast.owner_hash(g.owner)), array_agg(-1::bigint),
        array_agg(-(g.status = 'working')::int::bigint), array_agg(-(g.status = 'input_required')::int::bigint),
        array_agg(-(SELECT coalesce(sum(length(e.state)), 0)::bigint FROM outlast.past_events e
            WHERE e.originator_id = g.task_id))) INTO forgotten
    FROM gone g HAVING count(*) > 0;
END $$;
