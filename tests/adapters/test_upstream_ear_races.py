"""An ear on a connection that a test plays: what happens to it while the ear is busy."""

import asyncio
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from outlast.adapters import upstream_ear
from outlast.adapters.upstream_ear import Ear
from outlast.adapters.upstream_link import Link, LinkOwner
from outlast.adapters.upstream_settings import UpstreamSettings
from outlast.adapters.upstream_watch import SUBSCRIPTIONS, TOOLS
from outlast.tests.support.upstreams import WAIT_S

pytestmark = pytest.mark.anyio

A, B = "note://a", "note://b"
SUBSCRIBE, UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"


class Played(Link):
    """A legacy connection that is never opened. A request waits while there is a gate for it."""

    def __init__(self, owner: LinkOwner) -> None:
        # Not what would connect: the fields that an ear looks at.
        self.settings = UpstreamSettings("played", url="http://played")
        self.hears, self.hearings = asyncio.Event(), 0
        self.is_over, self.retired, self._closing = False, False, False
        self._owner = owner
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.gates: dict[str, asyncio.Event] = {}

    @property
    def is_modern(self) -> bool:
        return False

    @property
    def offers(self) -> frozenset[str]:
        return frozenset({TOOLS, SUBSCRIPTIONS})

    async def request(
        self, method: str, params: Mapping[str, Any], *_: Any, **__: Any
    ) -> dict[str, Any]:
        self.asked.put_nowait(f"{method} {params['uri']}")
        if method in self.gates:
            await self.gates[method].wait()
        return {}

    def hear(self, *, hears: bool) -> None:
        """The standing stream is there, or is lost."""
        self._note_hearing(hears)


class Upstream:
    """Both the owner of the connection and what the ear listens to."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.ear = Ear(self, self.heard.append)
        self.link = Played(self)

    async def open_shared(self) -> Link:
        return self.link

    def retire(self, link: Link) -> None:
        link.retired = True

    def pause_s(self) -> float:
        return 0.0

    def hearing_changed(self) -> None:
        self.ear.nudge()

    def over(self, link: Link) -> None:
        """Nothing: it never is."""

    def told(self, topic: str) -> None:
        """Nothing: what it announces is up to the test."""

    def doubted(self) -> None:
        """Nothing: there are no lists here."""

    async def settled(self) -> None:
        with anyio.fail_after(WAIT_S):
            await self.ear.settled()

    async def asked(self) -> str:
        """The next request."""
        with anyio.fail_after(WAIT_S):
            return await self.link.asked.get()


async def test_a_stream_that_is_lost_and_back_while_the_ear_subscribes_may_have_missed_something():
    upstream = Upstream()
    upstream.link.hear(hears=True)
    upstream.ear.begin([A])
    await upstream.settled()
    assert await upstream.asked() == f"{SUBSCRIBE} {A}"
    gate = upstream.link.gates[SUBSCRIBE] = asyncio.Event()
    upstream.ear.begin([B])
    assert await upstream.asked() == f"{SUBSCRIBE} {B}"
    upstream.heard.clear()
    upstream.link.hear(hears=False)
    upstream.link.hear(hears=True)
    gate.set()
    await upstream.settled()
    assert set(upstream.heard) == {A, B, TOOLS}
    await upstream.ear.close()


async def test_a_stream_that_comes_after_it_was_given_up_is_news(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upstream_ear, "DEAF_S_MAX", 0.0)
    upstream = Upstream()
    upstream.ear.begin([A])
    await upstream.settled()
    assert await upstream.asked() == f"{SUBSCRIBE} {A}"
    upstream.heard.clear()
    upstream.link.hear(hears=True)
    upstream.ear.begin([B])
    await upstream.settled()
    assert set(upstream.heard) == {A, B, TOOLS}
    await upstream.ear.close()


async def test_listeners_that_come_and_go_are_no_failures(monkeypatch: pytest.MonkeyPatch):
    waited: list[int] = []

    def backoff_s(failures: int) -> float:
        waited.append(failures)
        return 0.0

    monkeypatch.setattr(upstream_ear, "backoff_s", backoff_s)
    upstream = Upstream()
    upstream.link.hear(hears=True)
    upstream.ear.begin([A])
    for _ in range(4):
        await upstream.settled()
        assert await upstream.asked() == f"{SUBSCRIBE} {A}"
        gate = upstream.link.gates[UNSUBSCRIBE] = asyncio.Event()
        upstream.ear.end([A])
        assert await upstream.asked() == f"{UNSUBSCRIBE} {A}"
        upstream.ear.begin([A])
        gate.set()
    await upstream.settled()
    assert not any(waited)
    await upstream.ear.close()
