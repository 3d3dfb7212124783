"""What Outlast promises as a program that a client starts: a part of `promises.py`."""

from outlast.tests.promise import Promise

TRANSPARENT = "Issue 7, transparent"
TRANSPORT = "stdio transport"

PROMISES = (
    Promise(
        "stdio-says-messages-only",
        "`outlast stdio` writes one JSON-RPC message a line and nothing else; bad lines hurt none.",
        f"{TRANSPORT}: Receiving Messages",
    ),
    Promise(
        "stdio-serves-all-at-once",
        "Over stdio requests are served at the same time, with news, watches and cancellation.",
        f"{TRANSPORT}: Cancellation",
    ),
    Promise(
        "stdio-answers-before-the-store",
        "`server/discover` and `tools/list` are answered while the store is still starting.",
        f"{TRANSPARENT}: stdio",
    ),
    Promise(
        "stdio-ends-in-order",
        "A closed input, a closed output and SIGTERM each end `outlast stdio` in order, with 0.",
        f"{TRANSPORT}: Shutdown",
    ),
    Promise(
        "stdio-tasks-outlive-the-process",
        "A task goes on in the next `outlast stdio`, however the one before has ended.",
        f"{TRANSPORT}: Unexpected Termination",
    ),
    Promise(
        "stdio-clients-share-a-store",
        "Several `outlast stdio` in one folder have one store, which goes with the last of them.",
        f"{TRANSPARENT}: stdio",
    ),
    Promise(
        "recipes-run",
        "Every recipe of the documentation does what it says, as it is written.",
        f"{TRANSPARENT}: recipes",
    ),
    Promise(
        "secrets-stay-in-the-environment",
        "`${NAME}` in a header or a variable of an upstream is filled in, or its lack is named.",
        f"{TRANSPARENT}: recipes",
    ),
)
