"""The `outlast` command with little patience, so that no test has to wait for as long as it has.

python -m outlast.tests.support.hasty "take=0.5 keep_alive=0.2" serve …
"""

import sys

from outlast.delivery import bells
from outlast.delivery.webhook import sender
from outlast.domain import draft
from outlast.service import carriers, socket
from outlast.service.cli import main, serving


def _hurry(name: str, seconds: float) -> None:
    match name:
        case "keep_alive":
            bells.KEEP_ALIVE_S = seconds
        case "heartbeat":
            draft.HEARTBEAT_S = seconds
        case "take":
            carriers.TAKE_S_MAX = seconds
        case "idle":
            socket.IDLE_S_MAX = seconds
        case "lease":
            sender.LEASE_S = seconds
        case "ping":
            serving.PING_S = seconds
        case _:
            raise LookupError(name)


def hasty(**seconds: float) -> list[str]:
    """The command, with these patiences."""
    given = " ".join(f"{name}={value}" for name, value in seconds.items())
    return [sys.executable, "-m", "outlast.tests.support.hasty", given]


if __name__ == "__main__":
    for pair in sys.argv.pop(1).split():
        key, _, value = pair.partition("=")
        _hurry(key, float(value))
    main()
