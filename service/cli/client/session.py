"""What a command that talks to a server works with, opened and closed together."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from ....domain.clienting import Entry
from ...client import Handlers, TaskClient
from .asking import Asker, terminal
from .following import Follower
from .interrupts import Interrupts
from .reach import Reach
from .screen import Screen, screen


@dataclass(frozen=True)
class Session:
    """A client, what it shows, and whom it asks."""

    client: TaskClient
    screen: Screen
    asker: Asker
    interrupts: Interrupts
    follower: Follower


@asynccontextmanager
async def session(reach: Reach, *, as_json: bool, many: bool = False) -> AsyncGenerator[Session]:
    """Everything for one command. Ctrl-C is a question from here on."""
    shown, interrupts = screen(as_json=as_json, many=many), Interrupts()
    asker = Asker(reach.server, shown, terminal())
    with interrupts.heard():
        try:
            async with TaskClient.connect(
                reach.server,
                reach.token,
                reach.via,
                reach.journal,
                Handlers(elicitation=asker),
                webhook=reach.webhook,
            ) as client:
                follower = Follower(shown, asker, interrupts)
                yield Session(client, shown, asker, interrupts, follower)
        finally:
            shown.close()


async def entries(reach: Reach) -> list[Entry]:
    """What the journal holds of this server and this owner, oldest first."""
    async with (
        TaskClient.connect(reach.server, reach.token, journal=reach.journal) as client,
        aclosing(client.journal_entries()) as notes,
    ):
        return [note async for note in notes]
