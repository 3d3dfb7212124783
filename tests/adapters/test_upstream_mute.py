"""A real upstream that is connected to and does not list its tools: whom that holds up."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from outlast.adapters import upstream_lists
from outlast.adapters.upstream import McpUpstreams
from outlast.adapters.upstream_link import Link
from outlast.domain import errors
from outlast.tests.acceptance.waiting import until
from outlast.tests.support.passing import listed
from outlast.tests.support.upstreams import WAIT_S, outcome, stdio, text

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("patience"),
    pytest.mark.promise("lists-say-what-is-missing"),
]

ASKING = 5
BRIEF_S = 0.3


@pytest.fixture
def gag(tmp_path: Path) -> Path:
    """While this file is there, the upstream lists nothing."""
    file = tmp_path / "gag"
    file.touch()
    return file


@pytest.fixture
async def two(gag: Path) -> AsyncIterator[McpUpstreams]:
    given = [stdio("odd_server", "--mute", str(gag), name="mute"), stdio("everyday", name="up")]
    async with McpUpstreams(given) as upstreams:
        with anyio.fail_after(WAIT_S):
            await upstreams.offers()
            await upstreams.ready("up")
        yield upstreams


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whose tools have been asked for."""
    asked: list[str] = []
    request = Link.request

    async def noted(link: Link, method: str, *args: Any) -> Any:
        if method == "tools/list":
            asked.append(link.settings.name)
        return await request(link, method, *args)

    monkeypatch.setattr(Link, "request", noted)
    return asked


async def refusals(upstreams: McpUpstreams) -> list[str]:
    """What those are told who ask at once and need just this upstream."""
    with anyio.fail_after(WAIT_S):
        asking = (upstreams.ready("mute") for _ in range(ASKING))
        found = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(error, errors.UpstreamUnavailable) for error in found), found
    return [str(error) for error in found]


async def test_who_can_do_without_it_waits_for_one_reading_and_only_so_long(
    two: McpUpstreams, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two, "_within_s", BRIEF_S)
    with anyio.fail_after(upstream_lists.LIST_S_MAX / 2):
        found = await asyncio.gather(*(two.listed("tools") for _ in range(ASKING)))
        assert {tool.upstream for tool in await two.tools()} == {"up"}
        assert text(await outcome(two, "add", {"a": 1, "b": 2}, upstream="up")) == "3"
    assert {listing.unavailable for listing in found} == {("mute",)}
    assert all(listing.entries for listing in found)
    assert sent.count("mute") == 1


async def test_what_nobody_waited_for_is_there_for_the_next_one(
    two: McpUpstreams, gag: Path, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two, "_within_s", BRIEF_S)
    assert (await listed(two, "tools")).unavailable == ("mute",)
    gag.unlink()

    async def is_whole() -> bool:
        return (await listed(two, "tools")).unavailable == ()

    await until(is_whole, WAIT_S)
    assert sent.count("mute") == 1


async def test_who_gives_up_takes_the_reading_from_nobody(
    two: McpUpstreams, gag: Path, sent: list[str]
) -> None:
    first, second = [asyncio.ensure_future(two.ready("mute")) for _ in range(2)]

    async def is_asked() -> bool:
        return "mute" in sent

    await until(is_asked, WAIT_S)
    first.cancel()
    await asyncio.wait({first})
    gag.unlink()
    with anyio.fail_after(WAIT_S):
        await second
    assert sent.count("mute") == 1


async def test_a_failure_is_shared_and_not_asked_for_again_at_once(
    two: McpUpstreams, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_lists, "LIST_S_MAX", BRIEF_S)
    kept = upstream_lists.backoff_s(2)
    assert kept > 0
    monkeypatch.setattr(upstream_lists, "backoff_s", lambda count: {2: WAIT_S * kept}[count])
    said = await refusals(two)
    assert "tools/list was not answered within" in said[0]
    assert await refusals(two) == said
    assert sent.count("mute") == 1


async def test_who_can_do_without_it_hardly_waits_for_what_failed_before(
    two: McpUpstreams, gag: Path, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_lists, "backoff_s", lambda _: 0.0)
    with monkeypatch.context() as brief:
        brief.setattr(upstream_lists, "LIST_S_MAX", BRIEF_S)
        await refusals(two)
    monkeypatch.setattr(two, "_within_s", 2 * WAIT_S)
    before = sent.count("mute")
    with anyio.fail_after(upstream_lists.LIST_S_MAX / 2):
        assert (await two.listed("tools")).unavailable == ("mute",)
    assert sent.count("mute") == before + 1
    gag.unlink()
    with anyio.fail_after(WAIT_S):
        await two.ready("mute")
    assert (await listed(two, "tools")).unavailable == ()
