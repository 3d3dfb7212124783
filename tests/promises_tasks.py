"""What Outlast promises of the list of tasks: a part of `promises.py`."""

from outlast.tests.promise import Promise

SEEN = "Issue 8, seen and run"

PROMISES = (
    Promise(
        "the-list-of-tasks-finds-every-task",
        "The list has every task once, newest first, over pages both ways, by each filter.",
        f"{SEEN}: console",
    ),
    Promise(
        "the-list-of-tasks-stays-as-quick-as-its-page",
        "A page of the list looks at no more of a full store than the page needs, by each filter.",
        f"{SEEN}: console",
    ),
    Promise(
        "the-list-of-tasks-shows-nobody-another-owners",
        "Without the scope operate the list has the visitor's own tasks alone.",
        f"{SEEN}: console",
    ),
)
