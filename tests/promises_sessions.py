"""What Outlast promises clients of the `initialize` era: a part of `promises.py`."""

from outlast.tests.promise import Promise

ERAS = "Issue 7, transparent: two eras"

PROMISES = (
    Promise(
        "older-clients-are-served",
        "Clients of 2025-03-26 to 2025-11-25 get from the same endpoint what the upstream gives.",
        ERAS,
    ),
    Promise(
        "a-session-is-its-owners",
        "To all but its owner a session is not there, nor anything that it was ever sent.",
        ERAS,
    ),
    Promise(
        "a-call-of-a-session-runs-once",
        "A call that a session lost sight of runs on; sent again, it gets the first one's result.",
        ERAS,
    ),
    Promise(
        "sessions-are-bounded",
        "Sessions end when their clients say so or are idle; one owner cannot take them all.",
        ERAS,
    ),
    Promise(
        "older-tasks-are-ours",
        "The tasks of 2025-11-25 are the same tasks, told in its words, and their owner's alone.",
        ERAS,
    ),
)
