"""One subscription and the receiver of its deliveries, by themselves: what `receive` runs.

What a process leaves behind lets the next one go on: the inbox with what was not handed on, and
the record of the subscription.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from ...domain import draft
from .receiver import Received, Receiver
from .subscriber import Record, Subscriber, Subscribing, Wish

_log = logging.getLogger("outlast.webhook")


class Note(Protocol):
    """What one process leaves for the next, replaced as a whole. Raises StoreUnavailable."""

    async def read(self) -> bytes | None:
        """What was left, or None."""
        ...

    async def write(self, content: bytes) -> None:
        """Leave this instead. Durable once it returns."""
        ...

    async def remove(self) -> None:
        """Leave nothing. Idempotent."""
        ...


class Reception:
    """`app` is what to serve at the URL of the wish; it is known there while `keep` runs."""

    def __init__(self, receiver: Receiver, subscriber: Subscriber, note: Note) -> None:
        self.app = receiver
        self._receiver, self._subscriber, self._note = receiver, subscriber, note
        self._noting = asyncio.Lock()  # else a removal could overtake what is being written

    @classmethod
    async def resumed(
        cls, receiver: Receiver, shared: Subscribing, wish: Wish, note: Note
    ) -> "Reception":
        """Where the last process was, if there was one. Raises StoreUnavailable."""
        left = await note.read()
        record = None if left is None else Record.parse(left)
        return cls(receiver, Subscriber(shared, wish, record), note)

    async def keep(self) -> None:
        """Subscribe, and stay subscribed until cancelled, or until the subscription is let go.

        An answer that tells of lost events is handed on as a gap, like one that was delivered.
        Raises RequestRefused, StoreUnavailable.
        """
        async with aclosing(self._subscriber.kept()) as grants:
            async for grant in grants:
                if grant.truncated and grant.cursor is not None:
                    await self._receiver.tell_gap(grant.subscription_id, grant.cursor)
                await self._leave_note()
                _log.info("subscribed as %s", grant.subscription_id)

    def received(self) -> AsyncGenerator[Received]:
        """See `Receiver.received`; ends with the word that this subscription is over."""
        return self._receiver.received(self._is_end)

    async def unsubscribe(self) -> None:
        """Let go of the subscription; nothing is left to go on with. Raises RemoteError."""
        await self._subscriber.unsubscribe()
        async with self._noting:
            await self._note.remove()

    async def _leave_note(self) -> None:
        async with self._noting:
            record = self._subscriber.record
            if record is not None:  # else it has been let go of since
                await self._note.write(record.to_json())

    def _is_end(self, received: Received) -> bool:
        record = self._subscriber.record
        is_ours = record is not None and received.subscription_id == record.subscription_id
        return is_ours and received.envelope == draft.ENDED
