-- Group commit: one call brings what many tasks append at once. What it promises is as before; what is new is what it
-- costs. A batch is written in as few steps as it needs, and the owners' rows are written once for all of it.
--
-- The plans are the same for one row and for many, so they are made once for a connection. They go by index: one that
-- is made while the tables are small would read them whole, and be kept while they grow.
CREATE OR REPLACE FUNCTION outlast.append_events(
    ids text[], versions bigint[], topics text[], states bytea[], event_ids uuid[], event_statuses text[],
    task_ids text[], expected bigint[], task_versions bigint[], owners text[], tools text[], statuses text[],
    created timestamptz[], expires timestamptz[], idempotency_keys text[], call_digests text[], wires bytea[],
    queueings text[], workers text[], dues timestamptz[], lease_s double precision,
    former text[], data_keys bytea[], wrapped_by text, most bigint[]
) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode TO force_generic_plan SET enable_seqscan TO off AS $$
DECLARE
    moved integer;
    queued integer := 0;
    is_followed boolean;
    positions bigint[];
    reached integer;
BEGIN
    -- In the order of the keys: two batches that use the same ones wait for each other in one direction only.
    IF 0 = ANY (expected) THEN
        INSERT INTO outlast.task_view
            (task_id, version, owner, tool, status, created_at, expires_at, idempotency_key, call_digest, wire)
        SELECT v.task_id, v.version, v.owner, v.tool, v.status, v.created, v.expires, v.key, v.digest, v.wire
        FROM unnest(task_ids, expected, task_versions, owners, tools, statuses, created, expires,
                    idempotency_keys, call_digests, wires)
            AS v(task_id, expected, version, owner, tool, status, created, expires, key, digest, wire)
        WHERE v.expected = 0
        ORDER BY v.key, v.owner, v.task_id;
    END IF;
    IF 0 < ANY (expected) THEN
        WITH locked AS MATERIALIZED (
            SELECT t.task_id FROM outlast.task_view t
            WHERE t.task_id = ANY (ARRAY(
                SELECT v.task_id FROM unnest(task_ids, expected) AS v(task_id, expected) WHERE v.expected > 0))
            ORDER BY t.task_id FOR UPDATE
        )
        UPDATE outlast.task_view t
        SET version = v.version, status = v.status, expires_at = v.expires, wire = v.wire
        FROM unnest(task_ids, expected, task_versions, statuses, expires, wires)
            AS v(task_id, expected, version, status, expires, wire), locked
        WHERE t.task_id = v.task_id AND locked.task_id = v.task_id AND t.version = v.expected;
        GET DIAGNOSTICS moved = ROW_COUNT;
        IF moved <> cardinality(array_remove(expected, 0)) THEN
            RAISE EXCEPTION 'stale version' USING ERRCODE = 'OL409';
        END IF;
    END IF;

    IF wrapped_by IS NOT NULL THEN
        INSERT INTO outlast.data_keys (task_id, wrapped, wrapped_by)
        SELECT v.task_id, v.data_key, append_events.wrapped_by
        FROM unnest(task_ids, data_keys) AS v(task_id, data_key)
        WHERE v.data_key IS NOT NULL ORDER BY v.task_id;
    END IF;

    IF 'drop' = ANY (queueings) THEN
        -- Locked in the order of ids, as those do who renew leases.
        WITH locked AS MATERIALIZED (
            SELECT q.task_id FROM outlast.run_queue q
            WHERE q.task_id = ANY (ARRAY(
                SELECT v.task_id FROM unnest(task_ids, queueings) AS v(task_id, queueing) WHERE v.queueing = 'drop'))
            ORDER BY q.task_id FOR UPDATE
        )
        DELETE FROM outlast.run_queue q USING locked WHERE q.task_id = locked.task_id;
    END IF;
    IF queueings && '{put,lease,wait}' THEN
        INSERT INTO outlast.run_queue AS q (task_id, owner, due, worker, lease_until)
        SELECT v.task_id, outlast.owner_hash(v.owner),
            CASE WHEN v.queueing = 'wait' THEN v.due ELSE clock_timestamp() END,
            CASE WHEN v.queueing = 'lease' THEN v.worker END,
            CASE WHEN v.queueing = 'lease' THEN clock_timestamp() + make_interval(secs => lease_s) END
        FROM unnest(task_ids, owners, queueings, workers, dues) AS v(task_id, owner, queueing, worker, due)
        WHERE v.queueing IN ('put', 'lease', 'wait') ORDER BY v.task_id
        ON CONFLICT (task_id) DO UPDATE
        SET owner = EXCLUDED.owner, due = EXCLUDED.due, worker = EXCLUDED.worker, lease_until = EXCLUDED.lease_until;
    END IF;

    -- A statement of its own: the next ones then see every subscription that was stored under this lock before.
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
        RETURNING notification_id
    )
    SELECT array_agg(notification_id ORDER BY notification_id) INTO positions FROM inserted;

    PERFORM 1 FROM outlast.webhook_subscriptions LIMIT 1;
    is_followed := FOUND;
    IF is_followed THEN
        INSERT INTO outlast.webhook_deliveries (subscription_id, url, position, task_id, version)
        SELECT s.id, s.url, i.notification_id, i.originator_id, i.originator_version
        FROM outlast.task_events i CROSS JOIN LATERAL (
            SELECT * FROM outlast.webhook_subscriptions a WHERE a.owner_hash = i.owner AND a.task_ids IS NULL
            UNION ALL
            SELECT * FROM outlast.webhook_subscriptions b
            WHERE b.task_ids @> ARRAY[i.originator_id] AND b.owner_hash = i.owner
        ) s
        WHERE i.notification_id = ANY (positions)
            AND s.is_active AND s.ending IS NULL
            AND (s.refresh_before IS NULL OR s.refresh_before > clock_timestamp())
            AND outlast.is_wanted(s.name, s.tools, s.statuses, i.topic, i.tool, i.status)
        ORDER BY i.notification_id;
        GET DIAGNOSTICS queued = ROW_COUNT;
    END IF;

    -- What owners use, each in its own row and all in the row of the empty owner.
    INSERT INTO outlast.owner_usage AS u (owner, tasks, working, parked, bytes)
    SELECT coalesce(d.owner, ''), sum(d.tasks), sum(d.working), sum(d.parked), sum(d.bytes)
    FROM (
        SELECT outlast.owner_hash(v.owner) AS owner, (v.expected = 0)::int AS tasks,
            (v.status = 'working')::int - (coalesce(v.former, '') = 'working')::int AS working,
            (v.status = 'input_required')::int - (coalesce(v.former, '') = 'input_required')::int AS parked,
            b.bytes
        FROM unnest(task_ids, owners, expected, statuses, former) AS v(task_id, owner, expected, status, former)
        JOIN (SELECT e.id, sum(length(e.state)) AS bytes FROM unnest(ids, states) AS e(id, state) GROUP BY e.id) b
            ON b.id = v.task_id
    ) d
    GROUP BY GROUPING SETS ((d.owner), ())
    ORDER BY 1
    ON CONFLICT (owner) DO UPDATE
    SET tasks = u.tasks + EXCLUDED.tasks, working = u.working + EXCLUDED.working,
        parked = u.parked + EXCLUDED.parked, bytes = u.bytes + EXCLUDED.bytes;
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

    IF is_followed AND statuses && '{completed,failed,cancelled}' THEN
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
