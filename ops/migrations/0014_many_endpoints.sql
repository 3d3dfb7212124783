-- Webhooks to many endpoints, and gaps that follow each other.

-- By it the sweep, and whoever drops an owner's webhooks, asks of each endpoint whether anybody is left who wants it.
-- Without it they compare every endpoint with every subscription. No plan may keep the subscriptions in memory instead
-- and go through them for each: one that was made while there were few would still do so when there are many.
CREATE INDEX webhook_subscriptions_url ON outlast.webhook_subscriptions (url);
ALTER FUNCTION outlast.sweep_webhooks(integer, interval) SET enable_seqscan TO off;
ALTER FUNCTION outlast.sweep_webhooks(integer, interval) SET enable_material TO off;
ALTER FUNCTION outlast.drop_webhooks(text) SET enable_seqscan TO off;
ALTER FUNCTION outlast.drop_webhooks(text) SET enable_material TO off;

-- As before, but a gap that is on its way says nothing of what is removed now: its claim is void, and it goes again with
-- a place of its own time. One that waits for another try has yet to be given its place, and keeps its pause.
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
    INSERT INTO outlast.webhook_deliveries AS d (subscription_id, url, envelope, position)
    SELECT subscription_id, url, 'gap', 0 FROM cut UNION SELECT id, url, 'gap', 0 FROM missed
    ORDER BY 1 ON CONFLICT (task_id, version, subscription_id, coalesce(envelope, '')) DO UPDATE
    SET fence = d.fence + 1, is_leased = false, due = clock_timestamp() WHERE d.is_leased;
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
