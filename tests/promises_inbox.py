"""What Outlast promises where people answer: a part of `promises.py`."""

from outlast.tests.promise import Promise

SEEN = "Issue 8, seen and run"

PROMISES = (
    Promise(
        "the-inbox-answers-as-the-client-would",
        "An answer in the console's inbox is the event of a tasks/update, and says whose it is.",
        f"{SEEN}: console",
    ),
    Promise(
        "the-first-answer-wins-and-the-other-is-told",
        "Of two people who answer at once one wins; the other is told who was first, and when.",
        f"{SEEN}: console",
    ),
)
