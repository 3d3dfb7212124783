"""What Outlast promises where many do the same at once: a part of `promises.py`."""

from outlast.tests.promise import Promise

FAST = "Issue 6, fast"

PROMISES = (
    Promise(
        "group-commit-tells-the-truth",
        "Whatever fails under many appends: what was acknowledged is stored, once, and in order.",
        f"{FAST}: group commit",
    ),
    Promise(
        "one-bad-append-hurts-no-other",
        "An append that is refused or cannot be stored changes nothing for those made with it.",
        f"{FAST}: group commit",
    ),
    Promise(
        "appends-are-served-in-turn",
        "No append waits for those after it, for another owner's flood, or for ever.",
        f"{FAST}: group commit",
    ),
    Promise(
        "an-outage-is-told-to-all-who-read",
        "However many read while the store does not answer, each is told so within seconds.",
        f"{FAST}: hot reads",
    ),
    Promise(
        "an-answer-leaves-in-one-piece",
        "Head and body of an answer leave together, whole and in order, however large they are.",
        f"{FAST}: hot endpoint",
    ),
    # Growth
    Promise(
        "task-ids-cannot-be-guessed",
        "A task id has 232 random bits of its own, and shares nothing with others but the moment.",
        f"{FAST}: growth",
    ),
    Promise(
        "a-long-task-is-folded-from-a-snapshot",
        "A wish on a task of very many events reads some hundred of them, and finds the same task.",
        f"{FAST}: growth",
    ),
    Promise(
        "a-snapshot-is-no-truth",
        "A snapshot that is damaged, of another release or gone changes nothing; it goes with"
        " its task before an erasure.",
        f"{FAST}: growth",
    ),
    Promise(
        "a-full-store-is-as-quick",
        "No statement on a request's way reads a table whole, or more of it the fuller it is.",
        f"{FAST}: growth",
    ),
)
