"""What the console promises of one task's page: a part of `promises.py`."""

from outlast.tests.promise import Promise

SEEN = "Issue 8, seen and run"

PROMISES = (
    Promise(
        "console-hides-secrets",
        "No page shows what a name or a setting marks as a secret, wherever it stands in a value.",
        f"{SEEN}: arguments and result with size limits and redaction",
    ),
    Promise(
        "console-shows-nobody-anothers-task",
        "Another owner's task is not there: on no page, in no part, for no download or action.",
        f"{SEEN}: a second user who must not see the first's tasks",
    ),
)
