"""`WebhookSource` where its own acts cross: every interleaving is made by the test."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from contextvars import copy_context
from typing import Any, cast

import anyio
import pytest

from outlast.delivery import source as pausing
from outlast.delivery.remote import Remote
from outlast.delivery.source import impatient
from outlast.delivery.webhook.keyring import MemoryKeyring
from outlast.delivery.webhook.receiver import Received
from outlast.delivery.webhook.source import WebhookSource
from outlast.delivery.webhook.subscriber import Subscribing
from outlast.domain import draft, errors
from outlast.service.waits import turns
from outlast.tests.delivery.posting import now

pytestmark = pytest.mark.anyio

SOON_S = 20.0
SUB = "sub_1"


class Server:
    """Grants what is asked for; an unsubscribe call may be made to wait."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.subscriptions: set[str] = set()
        self.letting_go, self.may_let_go = asyncio.Event(), asyncio.Event()

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(method)
        if method == draft.SUBSCRIBE:
            self.subscriptions.add(SUB)
            return {"id": SUB, "cursor": "c"}
        if method == draft.UNSUBSCRIBE:
            self.letting_go.set()
            await self.may_let_go.wait()
            self.subscriptions.discard(SUB)
            return {}
        return {"taskId": params["taskId"], "status": "working", **version(1)}


def version(number: int) -> dict[str, Any]:
    stamp = f"2026-11-29T12:00:0{number}Z"
    return {"lastUpdatedAt": stamp, "_meta": {"dev.outlast/version": number}}


class Deliveries:
    """Each reader gets the next of these: an error to raise, or deliveries and then no more."""

    def __init__(self, *scripts: list[Received | Exception]) -> None:
        self._scripts = iter(scripts)
        self.may_read = asyncio.Event()

    async def received(self) -> AsyncGenerator[Received]:
        await self.may_read.wait()
        for item in next(self._scripts, []):
            if isinstance(item, Exception):
                raise item
            yield item
        await asyncio.Event().wait()

    async def cursor_of(self, subscription_id: str) -> str | None:
        return None


def delivered(number: int) -> Received:
    state = {"taskId": "t", "status": "working", "lastUpdatedAt": f"2026-11-29T12:00:0{number}Z"}
    content = {"name": draft.TASK_UPDATED, "data": {**state, "version": number}}
    return Received(SUB, f"evt_{number}", None, "c", content)


def source_of(server: Server, deliveries: Deliveries) -> tuple[WebhookSource, MemoryKeyring]:
    keyring = MemoryKeyring()
    shared = Subscribing(cast(Remote, server), keyring, deliveries, now)
    return WebhookSource(shared, deliveries, "http://client.example/hook"), keyring


async def test_a_watch_that_follows_one_cut_off_twice_is_not_unsubscribed_with_it():
    """Found: cancelled once more while it let go, a line was given up before it had let go."""
    server = Server()
    source, keyring = source_of(server, Deliveries())
    with anyio.fail_after(SOON_S):
        first = source.watch("t")
        assert (await anext(first)).version == 1
        closing = asyncio.ensure_future(first.aclose())
        await server.letting_go.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        async with aclosing(source.watch("t")) as second:
            coming = asyncio.ensure_future(anext(second))
            await turns()
            server.may_let_go.set()
            assert (await coming).version == 1
            await turns()
            assert server.subscriptions == {SUB}
            assert await keyring.secrets_of(SUB)
    assert server.asked.count(draft.SUBSCRIBE) == server.asked.count(draft.UNSUBSCRIBE) == 2
    assert (server.subscriptions, source._lines) == (set(), {})


async def test_an_impatient_watch_does_not_make_the_reader_of_all_give_up(
    monkeypatch: pytest.MonkeyPatch,
):
    """Found: it inherited the impatience, and ended at an inbox that was away, telling nobody."""
    monkeypatch.setattr(pausing, "BACKOFF_S_FIRST", 0.0)
    server = Server()
    server.may_let_go.set()
    deliveries = Deliveries([errors.StoreUnavailable()], [delivered(2)])
    source, _ = source_of(server, deliveries)
    states = source.watch("t")
    with anyio.fail_after(SOON_S):
        with impatient():
            coming = asyncio.create_task(_next(states), context=copy_context())
        assert (await coming).version == 1
        deliveries.may_read.set()
        assert (await anext(states)).version == 2
        await states.aclose()


async def _next(states: AsyncGenerator[Any]) -> Any:
    return await anext(states)
