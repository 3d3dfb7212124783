"""What Outlast promises, as a list that runs.

A test claims a promise with `@pytest.mark.promise("name")`; `test_promises.py` compares both ways.
A promise enters this page with its test, and leaves it only with a line in the change log.
"""

from outlast.tests import (
    promises_audit,
    promises_bridges,
    promises_browser,
    promises_console,
    promises_console_task,
    promises_deployment,
    promises_fast,
    promises_inbox,
    promises_operations,
    promises_passing,
    promises_sessions,
    promises_stdio,
    promises_tasks,
    promises_telemetry,
)
from outlast.tests.promise import Promise

TASKS = "Tasks extension"
DURABLE_CORE = "Issue 1, the durable core"
DELIVERY = "Issue 2, the delivery layer"
PUSH = "Issue 3, webhooks and events"
EVENTS_DRAFT = "Triggers & Events draft"
CLIENT = "Issue 4, the client"
FAST = "Issue 6, fast"
DESIGN = "docs/architecture.md"

PROMISES = (
    # Creation
    Promise(
        "create-is-durable",
        "A task handle is sent after the commit that stores the task, never before.",
        f"{TASKS}: Task Creation",
    ),
    Promise(
        "creation-is-idempotent",
        "The same owner, key and call give the same task; the same key for another call is -32602.",
        f"{DURABLE_CORE}: service",
    ),
    Promise(
        "invalid-arguments-create-no-task",
        "Arguments that fail the tool's schema are answered as the plain call would be; no task.",
        f"{DURABLE_CORE}: service",
    ),
    Promise(
        "undeclared-client-gets-plain-result",
        "A client that did not declare the extension waits and gets the tool's own result.",
        f"{TASKS}: Capability Negotiation",
    ),
    Promise(
        "task-only-refuses-undeclared",
        "A task-only tool answers an undeclared client with -32021 and what it would need.",
        f"{TASKS}: Capability Negotiation",
    ),
    # Reading
    Promise(
        "reads-are-strong",
        "Once an append has returned, tasks/get on any replica sees it.",
        f"{TASKS}: Task Creation",
    ),
    Promise(
        "times-are-stable",
        "createdAt is the same string for ever; lastUpdatedAt moves on a change, never backwards.",
        f"{TASKS}: Tasks",
    ),
    Promise(
        "owners-are-isolated",
        "Another owner's task, an expired one and one that never was: one same -32602 for all.",
        f"{TASKS}: Security Considerations",
    ),
    # The life of a task
    Promise(
        "terminal-is-final",
        "Nothing follows completed, failed or cancelled, whoever asks.",
        f"{TASKS}: Task Status",
    ),
    Promise(
        "invariants-hold-for-any-wishes",
        "Wishes in any order, from any attempt, never break an invariant of the task.",
        f"{DURABLE_CORE}: domain",
    ),
    Promise(
        "model-is-checked",
        "Every reachable state of decider and lease protocol keeps the invariants.",
        f"{DURABLE_CORE}: proof",
    ),
    Promise(
        "races-have-one-outcome",
        "Updates and cancels sent at once are each applied once; a cancelled task runs no more.",
        f"{DURABLE_CORE}: proof",
    ),
    # Input
    Promise(
        "answered-is-never-asked-again",
        "A question that was answered is not put again, whatever was killed in between.",
        f"{DURABLE_CORE}: proof",
    ),
    Promise(
        "input-keys-are-never-reused",
        "An input key names one question in a task's whole life; other keys are ignored.",
        f"{TASKS}: Task Update Requests",
    ),
    Promise(
        "malformed-answer-applies-nothing",
        "One answer of the wrong shape refuses the whole update with -32602.",
        f"{DESIGN}: what the decider keeps",
    ),
    Promise(
        "parked-task-holds-no-slot",
        "A task that waits for an answer between two legs uses no worker slot.",
        f"{DURABLE_CORE}: service",
    ),
    # Cancelling
    Promise(
        "cancel-reaches-upstream",
        "A cancel request reaches the running upstream call, in whatever process it runs.",
        f"{TASKS}: Task Cancellation",
    ),
    # Crashes and outages
    Promise(
        "no-task-is-left-working",
        "Servers and workers killed at any moment: each acknowledged task ends exactly once.",
        f"{DURABLE_CORE}: proof",
    ),
    Promise(
        "unsafe-tool-never-runs-twice",
        "A tool that is not known to be safe to run again is run at most once.",
        f"{DURABLE_CORE}: proof",
    ),
    Promise(
        "waiting-tasks-are-not-polled-for",
        "A worker asks the queue when told, when a task is due, or to take over; else rarely.",
        f"{FAST}: dispatch",
    ),
    Promise(
        "killed-worker-is-recovered",
        "The tasks of a killed worker run again, or have failed, within 15 s.",
        f"{DURABLE_CORE}: proof",
    ),
    Promise(
        "stale-attempt-is-refused",
        "A stalled worker can never report on, or end, a run that another has taken over.",
        f"{DESIGN}: the lease protocol",
    ),
    Promise(
        "lost-reply-is-no-conflict",
        "A commit whose reply was lost is a success, not a conflict.",
        f"{DURABLE_CORE}: adapters",
    ),
    Promise(
        "outage-never-lies",
        "With the database down a request waits or gets -32603; nothing acknowledged is lost.",
        f"{DURABLE_CORE}: proof",
    ),
    Promise(
        "sigterm-drains",
        "On SIGTERM nothing more is claimed, runs end or are handed back, and the exit is in time.",
        f"{DURABLE_CORE}: service",
    ),
    Promise(
        "bad-input-kills-nothing",
        "Too large, too deep, not finite, a batch, no JSON: an answer each, and the process lives.",
        f"{DURABLE_CORE}: service",
    ),
    # The store
    Promise(
        "maintenance-does-not-stall-appends",
        "VACUUM, ANALYZE, an index build or a retention delete: the worst append under 50 ms.",
        f"{DURABLE_CORE}: proof",
    ),
    Promise(
        "old-events-replay",
        "A stored event of every version ever released is read and folded today.",
        f"{DURABLE_CORE}: adapters",
    ),
    Promise(
        "twins-keep-the-same-contract",
        "The in-memory twin of each port passes the tests of the PostgreSQL one.",
        f"{DURABLE_CORE}: adapters",
    ),
    Promise(
        "migrations-own-the-schema",
        "The schema comes from numbered steps alone, each applied once, by one process at a time.",
        f"{DURABLE_CORE}: adapters",
    ),
    Promise(
        "embedded-server-keeps-to-its-folder",
        "The embedded PostgreSQL changes no mode or owner outside its folder, opens no TCP port.",
        f"{DURABLE_CORE}: adapters",
    ),
    # Many at once
    Promise(
        "appends-share-commits",
        "Appends of many tasks at once share commits; one alone is made at once, by itself.",
        f"{FAST}: group commit",
    ),
    Promise(
        "processes-are-one-service",
        "What is begun at one process of a `serve` goes on at any other; limits are for them all.",
        f"{FAST}: more processes",
    ),
    Promise(
        "processes-are-supervised",
        "A process that dies is begun again; when the parent ends or dies, nothing of it is left.",
        f"{FAST}: more processes",
    ),
    Promise(
        "connections-are-bounded",
        "Under any load a process opens no more connections to PostgreSQL than it says it may.",
        f"{FAST}: more processes",
    ),
    # The wire
    Promise(
        "official-conformance",
        "All that the official suite requires of both eras passes through Outlast, and tasks-*.",
        f"{DURABLE_CORE}: proof",
    ),
    Promise(
        "real-clients-drive-tasks",
        "Clients written by others finish a task, answer a question and cancel.",
        f"{DURABLE_CORE}: proof",
    ),
    Promise(
        "removed-methods-are-not-found",
        "tasks/list, tasks/result and unknown methods: -32601 with HTTP 404.",
        f"{DURABLE_CORE}: service",
    ),
    Promise(
        "routing-headers-are-checked",
        "On the three task methods Mcp-Name must be the task's id.",
        f"{TASKS}: Streamable HTTP: Routing Headers",
    ),
    Promise(
        "legacy-task-field-is-ignored",
        "The old params.task field neither opts in nor is refused.",
        f"{TASKS}: Backwards Compatibility",
    ),
    # Delivery
    Promise(
        "deliveries-keep-one-promise",
        "Every way tells each change after the given version, in order, and then the end.",
        f"{DELIVERY}: the promise",
    ),
    Promise(
        "watchers-see-only-their-own",
        "A watch tells nothing of another owner's task, nor whether there is one.",
        f"{DELIVERY}: the promise",
    ),
    Promise(
        "slow-reader-is-cut-off-and-loses-nothing",
        "A reader that stops reading is cut off, slows nobody, and gets the rest when it returns.",
        f"{DELIVERY}: listen",
    ),
    Promise(
        "listen-speaks-the-specification",
        "A listen stream is framed, ordered, filtered and ended as the specification says.",
        "MCP 2026-07-28: Subscriptions; Streamable HTTP",
    ),
    Promise(
        "watch-survives-its-replica",
        "A watch sees what is done through any replica, and misses nothing when its own dies.",
        f"{DELIVERY}: replicas",
    ),
    # Push
    Promise(
        "webhooks-outlive-their-sender",
        "Every event arrives at least once under one id, whenever its sender is killed or frozen.",
        f"{PUSH}: proof",
    ),
    Promise(
        "webhook-watermark-is-safe",
        "A delivery's cursor is never ahead of an event that has not arrived or been given up.",
        f"{EVENTS_DRAFT}: Webhook Event Delivery",
    ),
    Promise(
        "dead-endpoint-delays-nobody",
        "An endpoint that fails, stalls or floods holds up no other's deliveries.",
        f"{PUSH}: the outbox",
    ),
    Promise(
        "nothing-is-posted-unasked",
        "Nothing is delivered to a URL whose endpoint has not echoed its challenge.",
        f"{EVENTS_DRAFT}: Webhook Security",
    ),
    Promise(
        "webhooks-go-to-public-addresses",
        "A delivery dials the very address that was judged, and no special one, whatever DNS says.",
        f"{EVENTS_DRAFT}: Webhook Security",
    ),
    Promise(
        "webhooks-are-standard",
        "Independent Standard Webhooks verifiers accept what is sent, also while a secret changes.",
        f"{EVENTS_DRAFT}: Webhook Security",
    ),
    Promise(
        "webhook-secrets-stay-inside",
        "No secret of a webhook is stored in clear, logged, or shown to anybody.",
        f"{PUSH}: signing",
    ),
    Promise(
        "subscribing-misses-nothing",
        "Appends that race with a subscription are each delivered, once.",
        f"{PUSH}: the outbox",
    ),
    Promise(
        "cursors-tell-nothing-of-others",
        "What other owners do changes neither the events nor the cursors of an owner.",
        f"{PUSH}: cursors",
    ),
    Promise(
        "events-are-told-once-and-in-order",
        "A poll or stream from a cursor tells every matching event after it, in order.",
        f"{EVENTS_DRAFT}: Cursor Lifecycle",
    ),
    Promise(
        "receiver-stores-before-it-says-yes",
        "A receiver says 2xx once event and cursor are stored, and hands each on until it is done.",
        f"{EVENTS_DRAFT}: Webhook Event Delivery",
    ),
    Promise(
        "callbacks-count-once",
        "A callback counts once, for the attempt that it belongs to, and never after the end.",
        f"{PUSH}: callbacks in",
    ),
    # The client
    Promise(
        "client-loses-no-task",
        "A client killed at any step finds its task again, and the tool has run at most once.",
        f"{CLIENT}: the journal",
    ),
    Promise(
        "every-source-gives-the-same",
        "Whatever way a client waits by, it gets the same results, errors and questions.",
        f"{CLIENT}: proof",
    ),
    Promise(
        "client-asks-once",
        "No question is put twice, across polls, restarts and sources.",
        f"{CLIENT}: input handlers",
    ),
    Promise(
        "client-drives-any-server",
        "The client works with a server of the tasks extension that we did not write.",
        f"{CLIENT}: proof",
    ),
    Promise(
        "servers-cannot-control-the-terminal",
        "Nothing that a server says reaches a terminal as a command.",
        "docs/client.md",
    ),
    Promise(
        "client-page-runs",
        "Every command and every program of the client's page runs as it stands there.",
        "docs/client.md",
    ),
    # People and code
    Promise(
        "policy-mistakes-are-named",
        "A mistake in outlast.toml stops the start with its line and its reason.",
        f"{DURABLE_CORE}: service",
    ),
    Promise(
        "readme-commands-run",
        "Every command in the README runs as it stands there.",
        "README.md",
    ),
    Promise(
        "arrows-point-inward",
        "Each folder imports only what its arrow allows.",
        f"{DESIGN}: who may import what",
    ),
    Promise(
        "import-does-nothing",
        "Importing any module opens no socket or file, starts nothing and reads no environment.",
        f"{DESIGN}: who may import what",
    ),
    *promises_audit.PROMISES,
    *promises_fast.PROMISES,
    *promises_operations.PROMISES,
    *promises_passing.PROMISES,
    *promises_bridges.PROMISES,
    *promises_console.PROMISES,
    *promises_console_task.PROMISES,
    *promises_browser.PROMISES,
    *promises_inbox.PROMISES,
    *promises_tasks.PROMISES,
    *promises_sessions.PROMISES,
    *promises_stdio.PROMISES,
    *promises_deployment.PROMISES,
    *promises_telemetry.PROMISES,
)
