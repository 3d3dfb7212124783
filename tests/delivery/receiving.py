"""A receiver that is being served, and all it is made of."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx2

from outlast.adapters.inbox import SqliteInbox
from outlast.delivery.webhook.keyring import MemoryKeyring
from outlast.delivery.webhook.receiver import Received, Receiver
from outlast.tests.delivery.posting import Sender, now, served

SECRET, NEW_SECRET, STRANGER = bytes(range(32)), bytes(range(32, 64)), bytes(range(64, 96))
PATIENCE_S = 60.0


@dataclass
class Half:
    """The parts, and a sender that knows the secret of `sub_1`."""

    receiver: Receiver
    inbox: SqliteInbox
    keyring: MemoryKeyring
    post: Sender

    async def take(self, count: int) -> list[Received]:
        """The next so many that are handed on; all of them are done."""
        found: list[Received] = []
        with anyio.fail_after(PATIENCE_S):
            changes = self.receiver.received()
            async for received in changes:
                found.append(received)
                if len(found) == count:
                    break
            await changes.aclose()
        for number, *_ in await self.inbox.waiting(1):
            await self.inbox.done(number)
        return found

    async def waiting(self) -> list[str]:
        return [webhook_id for _, _, webhook_id, _ in await self.inbox.waiting(1000)]


@asynccontextmanager
async def receiving(folder: Path) -> AsyncGenerator[Half]:
    """A receiver with its inbox in the folder, behind a real socket."""
    keyring = MemoryKeyring()
    keyring.bind("sub_1", SECRET)
    inbox = await SqliteInbox.open(folder / "inbox.db", now)
    receiver = Receiver(inbox, keyring, now)
    async with (
        served(receiver) as url,
        httpx2.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client,
    ):
        yield Half(receiver, inbox, keyring, Sender(client, url, SECRET))
    await inbox.close()
