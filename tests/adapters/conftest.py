"""The fixture upstreams, reached in every way; shared by the tests of one module."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from outlast.adapters import announcements, event_log, signal, upstream, upstream_ear
from outlast.adapters.upstream import McpUpstreams
from outlast.tests.adapters.group_commit_world import Made
from outlast.tests.support.ports import free_port
from outlast.tests.support.upstreams import EVERY_WAY, http_server, reached

STARTS_S_MAX = 60.0


@pytest.fixture(scope="module")
def http_ports() -> Iterator[Mapping[str, int]]:
    """One HTTP process for each fixture server; both speak both eras, the client chooses."""
    ports = {"everyday": free_port(), "asking": free_port()}
    with http_server("everyday", ports["everyday"]), http_server("asking", ports["asking"]):
        yield ports


@pytest.fixture(scope="module", params=EVERY_WAY)
async def everyday(
    request: pytest.FixtureRequest, http_ports: Mapping[str, int]
) -> AsyncIterator[McpUpstreams]:
    async with reached(request.param, "everyday", http_ports) as upstreams:
        yield upstreams


@pytest.fixture(scope="module", params=["stdio-modern", "http-modern"])
async def modern_asking(
    request: pytest.FixtureRequest, http_ports: Mapping[str, int]
) -> AsyncIterator[McpUpstreams]:
    async with reached(request.param, "asking", http_ports) as upstreams:
        yield upstreams


@pytest.fixture(scope="module", params=["stdio-legacy", "http-legacy"])
async def legacy_asking(
    request: pytest.FixtureRequest, http_ports: Mapping[str, int]
) -> AsyncIterator[McpUpstreams]:
    async with reached(request.param, "asking", http_ports) as upstreams:
        yield upstreams


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine needs longer to start a server, and to answer, than a client would wait."""
    monkeypatch.setattr(upstream, "OTHERS_WAIT_S_MAX", STARTS_S_MAX)
    monkeypatch.setattr(upstream, "OFFER_S_MAX", STARTS_S_MAX)
    monkeypatch.setattr(upstream_ear, "OFFER_S_MAX", STARTS_S_MAX)
    monkeypatch.setattr(announcements, "SETTLE_S_MAX", STARTS_S_MAX)


@pytest.fixture
def unlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is woken by a look: the signal looks by itself a second after it is opened."""
    monkeypatch.setattr(signal, "LOOK_DOWN_S", 600.0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The ids of the tasks in each call that any log makes."""
    made: list[list[str]] = []
    insert = event_log.TaskEventRecorder.insert_events

    def noted(self: Any, stored_events: Any, **more: Any) -> Sequence[int]:
        made.append([row.task.id for row in more["rows"]])
        return insert(self, stored_events, **more)

    monkeypatch.setattr(event_log.TaskEventRecorder, "insert_events", noted)
    return made


@pytest.fixture
async def made(database_url: str) -> AsyncIterator[Made]:
    async with AsyncExitStack() as stack:
        yield Made(database_url, stack)
