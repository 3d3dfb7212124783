"""What Outlast promises of what it tells of itself: a part of `promises.py`."""

from outlast.tests.promise import Promise

SEEN = "Issue 8, telemetry"

PROMISES = (
    Promise(
        "a-task-is-one-trace",
        "Request, attempts, calls and deliveries of a task are linked spans of its caller's trace.",
        SEEN,
    ),
    Promise(
        "a-worker-tells-how-it-is",
        "A worker with a port has figures of its own and its health there, and no other door.",
        SEEN,
    ),
    Promise(
        "what-dashboards-name-exists",
        "Every metric that the dashboard or an alert rule names is there in a scrape.",
        SEEN,
    ),
)
