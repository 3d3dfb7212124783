-- Push: an order of events for each owner, webhook subscriptions, and the outbox that appends fill in their own commits.

CREATE FUNCTION outlast.owner_hash(owner text) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN substr(sha256(convert_to(owner, 'UTF8')), 1, 16);

-- What an event is to a reader of all events of an owner: whose, of which tool, and the status after it.
ALTER TABLE outlast.task_events ADD COLUMN owner bytea, ADD COLUMN tool text, ADD COLUMN status text;
UPDATE outlast.task_events e
SET owner = outlast.owner_hash(v.owner), tool = v.tool,
    status = CASE e.topic WHEN 'task.completed' THEN 'completed' WHEN 'task.failed' THEN 'failed'
        WHEN 'task.expired' THEN 'failed' WHEN 'task.cancelled' THEN 'cancelled'
        WHEN 'task.input_requested' THEN 'input_required' ELSE 'working' END
FROM outlast.task_view v WHERE v.task_id = e.originator_id;
CREATE INDEX task_events_owner ON outlast.task_events (owner, notification_id);

-- Names this log in cursors: one that is made anew gives positions another meaning.
CREATE TABLE outlast.log_epoch (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    epoch    bigint NOT NULL
);
INSERT INTO outlast.log_epoch (epoch) VALUES (floor(random() * 4503599627370496)::bigint);

CREATE TABLE outlast.removed_events (
    owner      bytea  PRIMARY KEY,
    removed_to bigint NOT NULL
);

-- One row a URL: how it does, and the place where a fair claim begins.
CREATE TABLE outlast.webhook_endpoints (
    url           text PRIMARY KEY,
    failures      integer NOT NULL DEFAULT 0,
    failing_since timestamptz,
    opened        integer NOT NULL DEFAULT 0,
    open_until    timestamptz,
    probing_until timestamptz,
    revision      bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70);

-- One that has passed its refresh_before is there no more; sweep_webhooks() tidies up behind it.
CREATE TABLE outlast.webhook_subscriptions (
    id               text PRIMARY KEY,
    owner            text NOT NULL,
    owner_hash       bytea GENERATED ALWAYS AS (outlast.owner_hash(owner)) STORED,
    url              text NOT NULL,
    name             text NOT NULL,
    arguments        text NOT NULL,
    task_ids         text[],
    tools            text[],
    statuses         text[],
    secret           bytea NOT NULL,
    former_secret    bytea,
    former_until     timestamptz,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    refresh_before   timestamptz,
    is_active        boolean NOT NULL DEFAULT true,
    begins           bigint NOT NULL,
    backlog_from     bigint,
    ending           text,
    last_delivery_at timestamptz,
    last_error       text,
    failed_since     timestamptz
) WITH (fillfactor = 50);
CREATE INDEX webhook_subscriptions_owner ON outlast.webhook_subscriptions (owner_hash);
CREATE INDEX webhook_subscriptions_tasks ON outlast.webhook_subscriptions USING gin (task_ids)
    WHERE task_ids IS NOT NULL;
CREATE INDEX webhook_subscriptions_lapse ON outlast.webhook_subscriptions (refresh_before)
    WHERE refresh_before IS NOT NULL;
CREATE INDEX webhook_subscriptions_backlog ON outlast.webhook_subscriptions (id) WHERE backlog_from IS NOT NULL;

-- What waits, and nothing else: what is settled is gone. No foreign key: an append must not fail because somebody
-- unsubscribes meanwhile. A claim moves `due` to the end of its lease.
CREATE TABLE outlast.webhook_deliveries (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription_id text NOT NULL,
    url             text NOT NULL,
    envelope        text,
    why             text,
    position        bigint NOT NULL,
    task_id         text NOT NULL DEFAULT '',
    version         bigint NOT NULL DEFAULT 0,
    due             timestamptz NOT NULL DEFAULT clock_timestamp(),
    is_leased       boolean NOT NULL DEFAULT false,
    fence           bigint NOT NULL DEFAULT 0,
    attempts        integer NOT NULL DEFAULT 0
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
CREATE INDEX webhook_deliveries_due ON outlast.webhook_deliveries (url, due);
CREATE INDEX webhook_deliveries_place ON outlast.webhook_deliveries (subscription_id, position);
CREATE UNIQUE INDEX webhook_deliveries_once ON outlast.webhook_deliveries
    (task_id, version, subscription_id, coalesce(envelope, ''));

CREATE TABLE outlast.webhook_attempts (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription_id text NOT NULL,
    webhook_id      text NOT NULL,
    number          integer NOT NULL,
    at              timestamptz NOT NULL,
    category        text,
    status_class    smallint,
    latency_ms      integer NOT NULL,
    step            text NOT NULL,
    task_id         text NOT NULL,
    version         bigint NOT NULL
);
CREATE INDEX webhook_attempts_subscription ON outlast.webhook_attempts (subscription_id, id);
CREATE INDEX webhook_attempts_at ON outlast.webhook_attempts (at);

CREATE FUNCTION outlast.is_over(status text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN status IN ('completed', 'failed', 'cancelled');

CREATE FUNCTION outlast.is_wanted(
    name text, tools text[], statuses text[], topic text, tool text, status text
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE name
        WHEN 'task.updated' THEN true
        WHEN 'task.finished' THEN outlast.is_over(status)
        WHEN 'task.progress' THEN topic = 'task.progress_reported'
        ELSE false
    END
    AND (tools IS NULL OR tool = ANY (tools)) AND (statuses IS NULL OR status = ANY (statuses));

-- As before, and: whose and what each event is (`event_statuses` after each), the outbox, and a queue row that waits
-- (`queueing` wait) until `dues`.
CREATE FUNCTION outlast.append_events(
    ids text[], versions bigint[], topics text[], states bytea[], event_ids uuid[], event_statuses text[],
    task_ids text[], expected bigint[], task_versions bigint[], owners text[], tools text[], statuses text[],
    created timestamptz[], expires timestamptz[], idempotency_keys text[], call_digests text[], wires bytea[],
    queueings text[], workers text[], dues timestamptz[], lease_s double precision
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    moved integer;
    queued integer;
    positions bigint[];
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

    DELETE FROM outlast.run_queue q USING unnest(task_ids, queueings) AS v(task_id, queueing)
    WHERE q.task_id = v.task_id AND v.queueing = 'drop';
    INSERT INTO outlast.run_queue AS q (task_id, due, worker, lease_until)
    SELECT v.task_id, CASE WHEN v.queueing = 'wait' THEN v.due ELSE clock_timestamp() END,
        CASE WHEN v.queueing = 'lease' THEN v.worker END,
        CASE WHEN v.queueing = 'lease' THEN clock_timestamp() + make_interval(secs => lease_s) END
    FROM unnest(task_ids, queueings, workers, dues) AS v(task_id, queueing, worker, due)
    WHERE v.queueing IN ('put', 'lease', 'wait') ORDER BY v.task_id
    ON CONFLICT (task_id) DO UPDATE
    SET due = EXCLUDED.due, worker = EXCLUDED.worker, lease_until = EXCLUDED.lease_until;

    -- A statement of its own: the next one then sees every subscription that was stored under this lock before.
    PERFORM pg_advisory_xact_lock(7710428, 1);
    WITH inserted AS (
        INSERT INTO outlast.task_events
            (originator_id, originator_version, topic, state, event_id, owner, tool, status)
        SELECT e.id, e.version, e.topic, e.state, e.event_id,
            outlast.owner_hash(v.owner), v.tool, coalesce(e.status, v.status)
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

-- The call of the release before this one, for as long as one of its processes still runs.
CREATE OR REPLACE FUNCTION outlast.append_events(
    ids text[], versions bigint[], topics text[], states bytea[], event_ids uuid[],
    task_ids text[], expected bigint[], task_versions bigint[], owners text[], tools text[], statuses text[],
    created timestamptz[], expires timestamptz[], idempotency_keys text[], call_digests text[], wires bytea[],
    queueings text[], workers text[], lease_s double precision
) RETURNS bigint[] LANGUAGE sql AS $$
    SELECT outlast.append_events(
        ids, versions, topics, states, event_ids, NULL, task_ids, expected, task_versions, owners, tools, statuses,
        created, expires, idempotency_keys, call_digests, wires, queueings, workers, NULL, lease_s)
$$;

-- Queues `terminated` for the subscriptions to named tasks of which these are some, once all of them have ended. Also
-- while history is queued: who finishes that may not see the end yet. The claim holds it back.
CREATE FUNCTION outlast.end_followed(ended text[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    queued integer;
BEGIN
    INSERT INTO outlast.webhook_deliveries (subscription_id, url, envelope, why, position)
    SELECT s.id, s.url, 'terminated', 'task_terminal', 0
    FROM outlast.webhook_subscriptions s
    WHERE s.task_ids && ended AND s.is_active AND s.ending IS NULL
        AND (s.refresh_before IS NULL OR s.refresh_before > clock_timestamp())
        AND NOT EXISTS (SELECT 1 FROM outlast.task_view v
            WHERE v.task_id = ANY (s.task_ids) AND NOT outlast.is_over(v.status))
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS queued = ROW_COUNT;
    RETURN queued;
END $$;

-- Stores a subscription, or refreshes it; true for a new one. The lock of the appends makes "from now on" exact.
-- SQLSTATE OL429: the owner has too many others.
CREATE FUNCTION outlast.put_subscription(
    p_id text, p_owner text, p_url text, p_name text, p_arguments text, p_task_ids text[], p_tools text[],
    p_statuses text[], p_secret bytea, p_refresh_before timestamptz, p_start bigint, known_ids text[],
    known_versions bigint[], most integer, former_s double precision
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    head bigint;
    instant timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(7710428, 1);
    instant := clock_timestamp();
    SELECT coalesce(max(notification_id), 0) INTO head FROM outlast.task_events;
    INSERT INTO outlast.webhook_endpoints (url) VALUES (p_url) ON CONFLICT DO NOTHING;
    UPDATE outlast.webhook_subscriptions s
    SET former_secret = CASE WHEN s.secret <> p_secret THEN s.secret ELSE s.former_secret END,
        former_until = CASE WHEN s.secret <> p_secret THEN instant + make_interval(secs => former_s)
            ELSE s.former_until END,
        secret = p_secret, refresh_before = p_refresh_before
    WHERE s.id = p_id AND s.ending IS NULL AND (s.refresh_before IS NULL OR s.refresh_before > instant);
    IF FOUND THEN
        PERFORM outlast.resume_subscription(p_id);
        RETURN false;
    END IF;
    IF most <= (SELECT count(*) FROM outlast.webhook_subscriptions s
        WHERE s.owner_hash = outlast.owner_hash(p_owner) AND s.id <> p_id AND s.ending IS NULL
            AND (s.refresh_before IS NULL OR s.refresh_before > instant)) THEN
        RAISE EXCEPTION 'too many subscriptions' USING ERRCODE = 'OL429';
    END IF;
    DELETE FROM outlast.webhook_subscriptions WHERE id = p_id;
    DELETE FROM outlast.webhook_deliveries WHERE subscription_id = p_id;
    INSERT INTO outlast.webhook_subscriptions
        (id, owner, url, name, arguments, task_ids, tools, statuses, secret, refresh_before, begins, backlog_from)
    VALUES (p_id, p_owner, p_url, p_name, p_arguments, p_task_ids, p_tools, p_statuses, p_secret, p_refresh_before,
        head, CASE WHEN known_ids IS NULL AND p_start < head THEN p_start END);
    INSERT INTO outlast.webhook_deliveries (subscription_id, url, position, task_id, version)
    SELECT p_id, p_url, e.notification_id, e.originator_id, e.originator_version
    FROM unnest(known_ids, known_versions) AS k(task_id, version)
    JOIN outlast.task_view v ON v.task_id = k.task_id AND v.owner = p_owner
    JOIN outlast.task_events e ON e.originator_id = k.task_id AND e.originator_version > k.version
        AND (k.version > 0 OR e.originator_version = v.version)
    WHERE outlast.is_wanted(p_name, p_tools, p_statuses, e.topic, e.tool, e.status)
    ORDER BY e.notification_id;
    PERFORM outlast.end_followed(p_task_ids);
    PERFORM pg_notify('webhook_due', '');
    RETURN true;
END $$;

-- See WebhookSubscriptions.resume. The lock of the appends makes its place exact, as for one that is stored anew.
CREATE FUNCTION outlast.resume_subscription(p_id text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    instant timestamptz;
    found_url text;
BEGIN
    PERFORM pg_advisory_xact_lock(7710428, 1);
    instant := clock_timestamp();
    UPDATE outlast.webhook_subscriptions s
    SET begins = CASE WHEN s.is_active THEN s.begins
            ELSE (SELECT coalesce(max(e.notification_id), 0) FROM outlast.task_events e) END,
        is_active = true
    WHERE s.id = p_id AND s.ending IS NULL AND (s.refresh_before IS NULL OR s.refresh_before > instant)
    RETURNING s.url INTO found_url;
    IF found_url IS NULL THEN
        RETURN false;
    END IF;
    UPDATE outlast.webhook_endpoints SET open_until = least(open_until, instant), probing_until = NULL,
        revision = revision + 1
    WHERE url = found_url AND open_until IS NOT NULL;
    -- Whoever comes back need not wait for the next try: the oldest of what failed are due now.
    UPDATE outlast.webhook_deliveries SET due = instant
    WHERE id IN (
        SELECT d.id FROM outlast.webhook_deliveries d
        WHERE d.subscription_id = p_id AND d.attempts > 0 AND d.due > instant AND NOT d.is_leased
        ORDER BY d.position LIMIT 1000 FOR UPDATE SKIP LOCKED);
    PERFORM pg_notify('webhook_due', '');
    RETURN true;
END $$;

-- Queues a batch of what lies between the start of a subscription and the appends that queue for it by themselves.
CREATE FUNCTION outlast.queue_backlog(batch integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    s outlast.webhook_subscriptions;
    looked integer;
    last bigint;
BEGIN
    SELECT * INTO s FROM outlast.webhook_subscriptions
    WHERE backlog_from IS NOT NULL AND is_active ORDER BY id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    WITH seen AS MATERIALIZED (
        SELECT e.* FROM outlast.task_events e
        WHERE e.owner = s.owner_hash AND e.notification_id > s.backlog_from AND e.notification_id <= s.begins
            AND (s.task_ids IS NULL OR e.originator_id = ANY (s.task_ids))
        ORDER BY e.notification_id LIMIT batch
    ), told AS (
        INSERT INTO outlast.webhook_deliveries (subscription_id, url, position, task_id, version)
        SELECT s.id, s.url, e.notification_id, e.originator_id, e.originator_version FROM seen e
        WHERE outlast.is_wanted(s.name, s.tools, s.statuses, e.topic, e.tool, e.status)
        ORDER BY e.notification_id
        ON CONFLICT DO NOTHING
    )
    SELECT count(*), max(notification_id) INTO looked, last FROM seen;
    UPDATE outlast.webhook_subscriptions SET backlog_from = CASE WHEN looked = batch THEN last END WHERE id = s.id;
    IF looked < batch AND s.task_ids IS NOT NULL THEN
        PERFORM outlast.end_followed(s.task_ids);
    END IF;
    PERFORM pg_notify('webhook_due', '');
    RETURN true;
END $$;

-- See Outbox.claim. The watermark is what is safe once this very delivery has arrived. `instant` is a variable, so that
-- what is not due yet is never looked at: an index cannot be asked for what lies before a clock that moves. Chosen first
-- and locked then, so that no more is locked than is taken; who chose the same meanwhile goes away with less. But an
-- endpoint that is half-open is locked first, so that of claims at the same time one alone probes it. What is new waits
-- for history that is still being queued: it would overtake the first events of its task.
-- The plan was often made while next to nothing waited, and must still be good a burst later. So it may read nothing from
-- end to end and gather nothing to be sorted; the state of a subscription is asked for, not joined, so that an endpoint's
-- rows are read in their order until there are enough; and || '' keeps it from looking for the older events of a task
-- among all of a subscription.
CREATE FUNCTION outlast.claim_deliveries(most integer, per_endpoint integer, lease_s double precision, busy text[])
RETURNS TABLE (
    id bigint, fence bigint, attempts integer, subscription_id text, owner text, url text, name text, secret bytea,
    former_secret bytea, envelope text, why text, "position" bigint, task_id text, version bigint, watermark bigint,
    tool text, view_version bigint, wire bytea, failures integer, failing_since timestamptz, opened integer,
    open_until timestamptz, probing_until timestamptz, revision bigint
) LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    instant timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH half_open AS MATERIALIZED (
        SELECT h.url FROM outlast.webhook_endpoints h
        WHERE h.open_until <= instant AND (h.probing_until IS NULL OR h.probing_until <= instant)
            AND EXISTS (SELECT 1 FROM outlast.webhook_deliveries d WHERE d.url = h.url AND d.due <= instant)
        FOR NO KEY UPDATE SKIP LOCKED
    ), picked AS MATERIALIZED (
        SELECT due.id, e.url, e.open_until
        FROM outlast.webhook_endpoints e LEFT JOIN half_open ON half_open.url = e.url CROSS JOIN LATERAL (
            SELECT d.id, d.due FROM outlast.webhook_deliveries d
            WHERE d.url = e.url AND d.due <= instant
                AND (SELECT s.is_active AND (s.refresh_before IS NULL OR s.refresh_before > instant)
                        AND (s.backlog_from IS NULL
                            OR (d.envelope IS DISTINCT FROM 'terminated' AND d.position <= s.backlog_from))
                    FROM outlast.webhook_subscriptions s WHERE s.id = d.subscription_id)
                AND (d.attempts > 0 OR d.envelope IS NOT NULL OR NOT EXISTS (
                    SELECT 1 FROM outlast.webhook_deliveries o
                    WHERE o.task_id = d.task_id AND o.version < d.version
                        AND o.subscription_id || '' = d.subscription_id AND o.attempts = 0))
                AND (d.envelope IS DISTINCT FROM 'terminated' OR NOT EXISTS (
                    SELECT 1 FROM outlast.webhook_deliveries o
                    WHERE o.subscription_id = d.subscription_id AND o.id <> d.id))
            ORDER BY d.due
            LIMIT CASE WHEN e.failures > 0 OR e.open_until IS NOT NULL THEN 1 ELSE per_endpoint END
        ) due
        WHERE e.url <> ALL (busy) AND (e.open_until IS NULL OR half_open.url IS NOT NULL)
        ORDER BY due.due LIMIT most
    ), locked AS MATERIALIZED (
        SELECT k.id, p.url, p.open_until FROM picked p CROSS JOIN LATERAL (
            SELECT d.id FROM outlast.webhook_deliveries d WHERE d.id = p.id AND d.due <= instant
            FOR UPDATE SKIP LOCKED) k
    ), leased AS (
        UPDATE outlast.webhook_deliveries d
        SET due = clock_timestamp() + make_interval(secs => lease_s), fence = d.fence + 1,
            attempts = d.attempts + d.is_leased::integer, is_leased = true
        WHERE d.id = ANY (ARRAY(SELECT locked.id FROM locked))
        RETURNING d.*
    ), probed AS (
        UPDATE outlast.webhook_endpoints e
        SET probing_until = clock_timestamp() + make_interval(secs => lease_s), revision = e.revision + 1
        FROM (SELECT DISTINCT p.url FROM locked p WHERE p.open_until IS NOT NULL) p WHERE e.url = p.url
        RETURNING e.*
    )
    SELECT l.id, l.fence, l.attempts, s.id, s.owner, s.url, s.name, s.secret,
        CASE WHEN s.former_until > instant THEN s.former_secret END,
        l.envelope, l.why, l.position, l.task_id, l.version,
        least(s.backlog_from, coalesce(
            (SELECT o.position - 1 FROM outlast.webhook_deliveries o
             WHERE o.subscription_id = l.subscription_id AND o.id <> l.id AND o.envelope IS NULL
             ORDER BY o.position LIMIT 1),
            greatest(l.position,
                (SELECT max(h.notification_id) FROM outlast.task_events h WHERE h.owner = s.owner_hash),
                (SELECT r.removed_to FROM outlast.removed_events r WHERE r.owner = s.owner_hash)))),
        v.tool, v.version, v.wire, e.failures, e.failing_since, e.opened, e.open_until,
        coalesce(p.probing_until, e.probing_until), coalesce(p.revision, e.revision)
    FROM leased l
    JOIN outlast.webhook_subscriptions s ON s.id = l.subscription_id
    JOIN outlast.webhook_endpoints e ON e.url = l.url
    LEFT JOIN probed p ON p.url = l.url
    LEFT JOIN outlast.task_view v ON v.task_id = l.task_id
    ORDER BY l.position, l.id;
END $$;

-- See Outbox.settle: nothing happens unless the fence is still the last one. The subscription is locked before the
-- delivery, as by all who lock both.
CREATE FUNCTION outlast.settle_delivery(
    p_id bigint, p_fence bigint, retry_s double precision, p_webhook_id text, p_number integer, p_at timestamptz,
    p_category text, p_status_class integer, p_latency_ms integer, p_step text
) RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    d outlast.webhook_deliveries;
BEGIN
    PERFORM 1 FROM outlast.webhook_subscriptions s
    WHERE s.id = (SELECT w.subscription_id FROM outlast.webhook_deliveries w WHERE w.id = p_id AND w.fence = p_fence)
    FOR NO KEY UPDATE;
    IF retry_s IS NULL THEN
        DELETE FROM outlast.webhook_deliveries WHERE id = p_id AND fence = p_fence RETURNING * INTO d;
    ELSE
        UPDATE outlast.webhook_deliveries
        SET due = clock_timestamp() + make_interval(secs => retry_s), attempts = p_number, is_leased = false,
            fence = fence + 1
        WHERE id = p_id AND fence = p_fence RETURNING * INTO d;
    END IF;
    IF d.id IS NULL THEN
        RETURN false;
    END IF;
    INSERT INTO outlast.webhook_attempts
        (subscription_id, webhook_id, number, at, category, status_class, latency_ms, step, task_id, version)
    VALUES (d.subscription_id, p_webhook_id, p_number, p_at, p_category, p_status_class, p_latency_ms, p_step,
        d.task_id, d.version);
    UPDATE outlast.webhook_subscriptions s
    SET last_delivery_at = CASE WHEN p_category IS NULL THEN p_at ELSE s.last_delivery_at END,
        last_error = p_category,
        failed_since = CASE WHEN p_category IS NOT NULL THEN coalesce(s.failed_since, p_at) END,
        refresh_before = CASE WHEN d.envelope = 'terminated' AND retry_s IS NULL THEN clock_timestamp()
            ELSE s.refresh_before END
    WHERE s.id = d.subscription_id AND (p_category IS NOT NULL OR p_status_class IS NOT NULL);
    RETURN true;
END $$;

-- Many of them in one commit, as many as nobody else holds: it waits for no lock, so it needs no order among them. Null
-- for one that is to be settled alone.
CREATE FUNCTION outlast.settle_delivery_batch(
    p_ids bigint[], p_fences bigint[], retries_s double precision[], p_webhook_ids text[], p_numbers integer[],
    p_ats timestamptz[], p_categories text[], p_status_classes integer[], p_latencies_ms integer[], p_steps text[]
) RETURNS boolean[] LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    free bigint[];
BEGIN
    WITH told AS MATERIALIZED (
        SELECT s.id FROM outlast.webhook_subscriptions s
        WHERE s.id IN (SELECT w.subscription_id FROM outlast.webhook_deliveries w WHERE w.id = ANY (p_ids))
        FOR NO KEY UPDATE SKIP LOCKED
    ), held AS MATERIALIZED (
        SELECT w.id FROM outlast.webhook_deliveries w JOIN told ON told.id = w.subscription_id
        WHERE w.id = ANY (p_ids) FOR UPDATE OF w SKIP LOCKED
    )
    SELECT array_agg(held.id) INTO free FROM held;
    RETURN ARRAY(
        SELECT CASE WHEN v.id = ANY (free)
                OR NOT EXISTS (SELECT 1 FROM outlast.webhook_deliveries w WHERE w.id = v.id)
            THEN outlast.settle_delivery(v.id, v.fence, v.retry_s, v.webhook_id, v.number, v.at, v.category,
                v.status_class, v.latency_ms, v.step) END
        FROM unnest(p_ids, p_fences, retries_s, p_webhook_ids, p_numbers, p_ats, p_categories, p_status_classes,
                p_latencies_ms, p_steps) WITH ORDINALITY
            AS v(id, fence, retry_s, webhook_id, number, at, category, status_class, latency_ms, step, place)
        ORDER BY v.place);
END $$;

-- See Outbox.suspend. Under the lock of the appends, so that none still queues; and the subscription is locked by a
-- statement of its own: the next one then sees all that a batch of history has just queued.
CREATE FUNCTION outlast.suspend_subscription(p_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(7710428, 1);
    PERFORM 1 FROM outlast.webhook_subscriptions s WHERE s.id = p_id FOR UPDATE;
    UPDATE outlast.webhook_subscriptions s
    SET is_active = false, backlog_from = least(s.backlog_from, coalesce(
        (SELECT min(d.position) - 1 FROM outlast.webhook_deliveries d
         WHERE d.subscription_id = p_id AND d.envelope IS NULL),
        greatest((SELECT max(e.notification_id) FROM outlast.task_events e WHERE e.owner = s.owner_hash),
            (SELECT r.removed_to FROM outlast.removed_events r WHERE r.owner = s.owner_hash), 0)))
    WHERE s.id = p_id AND s.is_active;
    IF FOUND THEN
        DELETE FROM outlast.webhook_deliveries WHERE subscription_id = p_id AND envelope IS NULL;
    END IF;
END $$;

-- See WebhookSubscriptions.end. Under the lock of the appends: one that has not seen this would queue something more.
CREATE FUNCTION outlast.end_subscription(p_id text, p_why text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(7710428, 1);
    UPDATE outlast.webhook_subscriptions s SET ending = p_why, backlog_from = NULL, is_active = true
    WHERE s.id = p_id AND s.ending IS NULL AND (s.refresh_before IS NULL OR s.refresh_before > clock_timestamp());
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM outlast.webhook_deliveries WHERE subscription_id = p_id;
    INSERT INTO outlast.webhook_deliveries (subscription_id, url, envelope, why, position)
    SELECT s.id, s.url, 'terminated', p_why, 0 FROM outlast.webhook_subscriptions s WHERE s.id = p_id;
    PERFORM pg_notify('webhook_due', '');
    RETURN true;
END $$;

-- See Outbox.resend: of one event, or of all recorded since an instant.
CREATE FUNCTION outlast.resend_deliveries(p_id text, p_task_id text, p_version bigint, since timestamptz)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    queued integer;
BEGIN
    INSERT INTO outlast.webhook_deliveries (subscription_id, url, position, task_id, version)
    SELECT s.id, s.url, e.notification_id, e.originator_id, e.originator_version
    FROM outlast.webhook_subscriptions s JOIN outlast.task_events e ON e.owner = s.owner_hash
    WHERE s.id = p_id AND s.ending IS NULL AND (s.refresh_before IS NULL OR s.refresh_before > clock_timestamp())
        AND (p_task_id IS NULL OR (e.originator_id = p_task_id AND e.originator_version = p_version))
        AND (since IS NULL OR e.recorded_at >= since)
        AND (s.task_ids IS NULL OR e.originator_id = ANY (s.task_ids))
        AND outlast.is_wanted(s.name, s.tools, s.statuses, e.topic, e.tool, e.status)
    ORDER BY e.notification_id
    ON CONFLICT (task_id, version, subscription_id, coalesce(envelope, '')) DO UPDATE
    SET due = CASE WHEN webhook_deliveries.is_leased THEN webhook_deliveries.due ELSE clock_timestamp() END;
    GET DIAGNOSTICS queued = ROW_COUNT;
    PERFORM pg_notify('webhook_due', '');
    RETURN queued;
END $$;

-- Forgets, in batches, what has lapsed and old attempts; true while there is more. A minute's grace: an append that
-- began before the end may still queue.
CREATE FUNCTION outlast.sweep_webhooks(batch integer, attempts_kept interval) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    lapsed text[];
    done integer;
    total integer;
BEGIN
    SELECT array_agg(l.id) INTO lapsed FROM (
        SELECT s.id FROM outlast.webhook_subscriptions s WHERE s.refresh_before <= clock_timestamp()
        ORDER BY s.refresh_before LIMIT batch FOR UPDATE SKIP LOCKED) l;
    DELETE FROM outlast.webhook_deliveries d WHERE d.id IN (
        SELECT w.id FROM outlast.webhook_deliveries w WHERE w.subscription_id = ANY (lapsed) LIMIT batch
        FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS total = ROW_COUNT;
    DELETE FROM outlast.webhook_attempts a WHERE a.id IN (
        SELECT w.id FROM outlast.webhook_attempts w WHERE w.at < clock_timestamp() - attempts_kept
        ORDER BY w.at LIMIT batch FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS done = ROW_COUNT;
    total := total + done;
    DELETE FROM outlast.webhook_subscriptions s
    WHERE s.id = ANY (lapsed) AND s.refresh_before < clock_timestamp() - interval '1 minute'
        AND NOT EXISTS (SELECT 1 FROM outlast.webhook_deliveries d WHERE d.subscription_id = s.id);
    IF EXISTS (SELECT 1 FROM outlast.webhook_endpoints e
        WHERE NOT EXISTS (SELECT 1 FROM outlast.webhook_subscriptions s WHERE s.url = e.url))
        -- Under the lock, and looked for anew: a subscription that is just being stored keeps its endpoint. Who holds
        -- it may wait for a row of ours: then another time.
        AND pg_try_advisory_xact_lock(7710428, 1)
    THEN
        DELETE FROM outlast.webhook_endpoints e
        WHERE NOT EXISTS (SELECT 1 FROM outlast.webhook_subscriptions s WHERE s.url = e.url);
    END IF;
    RETURN total >= batch;
END $$;

-- As before, and: deliveries of what is forgotten end as a `gap`, also those that were still to be queued; and cursors
-- that lie before it are known to be old.
CREATE OR REPLACE FUNCTION outlast.forget_tasks(ids text[]) RETURNS void LANGUAGE plpgsql AS $$
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
        DELETE FROM outlast.task_events WHERE originator_id = ANY (ids) RETURNING owner, notification_id
    )
    INSERT INTO outlast.removed_events AS r (owner, removed_to)
    SELECT owner, max(notification_id) FROM gone WHERE owner IS NOT NULL GROUP BY owner ORDER BY owner
    ON CONFLICT (owner) DO UPDATE SET removed_to = greatest(r.removed_to, EXCLUDED.removed_to);
    DELETE FROM outlast.task_view WHERE task_id = ANY (ids);
END $$;
