"""A receiver as a process of its own, which can be told to die at one step of a delivery.

Usage: receiving_process.py PORT INBOX HANDED_ON SUBSCRIPTION SECRET [before-store|after-store]
"""

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import uvicorn

from outlast.adapters.inbox import SqliteInbox
from outlast.delivery.webhook import signing
from outlast.delivery.webhook.keyring import MemoryKeyring
from outlast.delivery.webhook.receiver import Receiver


def now() -> datetime:
    return datetime.now(UTC)


class MortalInbox:
    """The inbox of a process that is killed at a step of its first delivery."""

    def __init__(self, inbox: SqliteInbox, step: str) -> None:
        self._inbox, self._step = inbox, step
        self.waiting, self.done, self.cursor_of = inbox.waiting, inbox.done, inbox.cursor_of

    async def store(
        self, subscription_id: str, webhook_id: str, cursor: str | None, body: bytes
    ) -> bool:
        self._die("before-store")
        is_new = await self._inbox.store(subscription_id, webhook_id, cursor, body)
        self._die("after-store")
        return is_new

    def _die(self, step: str) -> None:
        if self._step == step:
            os.kill(os.getpid(), signal.SIGKILL)


async def main(port: int, path: Path, handed_on: Path, known: tuple[str, str], step: str) -> None:
    keyring = MemoryKeyring()
    keyring.bind(known[0], signing.parse_secret(known[1]))
    inbox = await SqliteInbox.open(path, now)
    receiver = Receiver(MortalInbox(inbox, step), keyring, now)
    server = uvicorn.Server(
        uvicorn.Config(receiver, host="127.0.0.1", port=port, log_level="warning", ws="none")
    )

    async def hand_on() -> None:
        async for received in receiver.received():
            with handed_on.open("a") as file:
                file.write(received.webhook_id + "\n")

    reader = asyncio.create_task(hand_on()) if not step else None
    await server.serve()
    if reader is not None:
        reader.cancel()
    await inbox.close()


if __name__ == "__main__":
    port, path, handed_on, subscription_id, secret, *step = sys.argv[1:]
    asyncio.run(
        main(int(port), Path(path), Path(handed_on), (subscription_id, secret), "".join(step))
    )
