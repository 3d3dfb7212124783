"""A subscription that is let go of while it is asked for, kept or noted: none of it is left."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, cast

import anyio
import pytest

from outlast.delivery.remote import Remote
from outlast.delivery.webhook import subscriber as module
from outlast.delivery.webhook.keyring import MemoryKeyring
from outlast.delivery.webhook.receiver import Receiver
from outlast.delivery.webhook.reception import Reception
from outlast.delivery.webhook.subscriber import Subscriber, Subscribing, Wish
from outlast.domain import draft, errors
from outlast.service.waits import turns
from outlast.tests.delivery.posting import now

pytestmark = pytest.mark.anyio

SOON_S = 20.0
SUB = "sub_1"
WISH = Wish("http://client.example/hook", draft.TASK_FINISHED, {}, None)


class Server:
    """Subscribes and lets go, one call after the other unless a test holds one up."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.subscriptions: set[str] = set()
        self.is_away = False
        self.letting_go, self.may_let_go = asyncio.Event(), asyncio.Event()

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(method)
        if self.is_away:
            raise errors.ConnectionLost("away")
        if method == draft.SUBSCRIBE:
            self.subscriptions.add(SUB)
            return {"id": SUB, "cursor": "c"}
        self.letting_go.set()
        await self.may_let_go.wait()
        if SUB not in self.subscriptions:
            raise errors.RequestRefused(draft.NOT_FOUND, "none")
        self.subscriptions.discard(SUB)
        return {}


class NoCursors:
    async def cursor_of(self, subscription_id: str) -> str | None:
        return None


class GatedNote:
    """A note whose writing takes as long as a test wants."""

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.writing, self.may_write = asyncio.Event(), asyncio.Event()

    async def read(self) -> bytes | None:
        return self.content

    async def write(self, content: bytes) -> None:
        self.writing.set()
        await self.may_write.wait()
        self.content = content

    async def remove(self) -> None:
        self.content = None


def shared_of(server: Server) -> Subscribing:
    return Subscribing(cast(Remote, server), MemoryKeyring(), NoCursors(), now)


def reception_of(server: Server, note: GatedNote) -> Reception:
    receiver = cast(Receiver, None)  # nothing is received here
    return Reception(receiver, Subscriber(shared_of(server), WISH), note)


async def test_a_refresh_that_waits_for_the_letting_go_does_not_subscribe_again():
    """Found: it went out behind the unsubscribe call, and what it made was left behind."""
    server = Server()
    shared = shared_of(server)
    ours = Subscriber(shared, WISH)
    with anyio.fail_after(SOON_S):
        await ours.subscribe()
        leaving = asyncio.create_task(ours.unsubscribe())
        await server.letting_go.wait()
        async with aclosing(ours.kept()) as grants:
            refreshing = asyncio.ensure_future(anext(grants, None))
            await turns()
            server.may_let_go.set()
            await leaving
            assert await refreshing is None
    assert server.asked == [draft.SUBSCRIBE, draft.UNSUBSCRIBE]
    assert server.subscriptions == set()
    assert await shared.keyring.secrets_of(SUB) == ()


async def test_a_try_that_is_due_after_the_letting_go_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
):
    pausing, may_go_on = asyncio.Event(), asyncio.Event()

    async def pause(_seconds: float) -> None:
        pausing.set()
        await may_go_on.wait()

    monkeypatch.setattr(module, "_pause", pause)
    server, note = Server(), GatedNote()
    reception = reception_of(server, note)
    note.may_write.set()
    server.may_let_go.set()
    server.is_away = True
    with anyio.fail_after(SOON_S):
        keeping = asyncio.create_task(reception.keep())
        await pausing.wait()
        server.is_away = False
        await reception.unsubscribe()
        may_go_on.set()
        await turns()
        assert keeping.done()
        await keeping
    assert server.asked == [draft.SUBSCRIBE, draft.UNSUBSCRIBE]
    assert (server.subscriptions, note.content) == (set(), None)


async def test_a_note_that_is_being_written_is_removed_with_the_subscription():
    """Found: it came to stand behind the removal, and the next process went on from it."""
    server, note = Server(), GatedNote()
    reception = reception_of(server, note)
    server.may_let_go.set()
    with anyio.fail_after(SOON_S):
        keeping = asyncio.create_task(reception.keep())
        await note.writing.wait()
        leaving = asyncio.create_task(reception.unsubscribe())
        await turns()
        note.may_write.set()
        await leaving
        await turns()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    assert (server.subscriptions, note.content) == (set(), None)
