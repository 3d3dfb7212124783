"""A job calls back while its upstream comes and goes: no word on a tool is made of that."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from outlast.domain import errors
from outlast.domain.ports import Tool
from outlast.domain.task import TaskStatus
from outlast.tests.contracts import stores
from outlast.tests.domain.given import RESULT
from outlast.tests.service.callback_bench import SCHEMA, Bench, Upstream, bench_on

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(module_database_url: str) -> AsyncIterator[Bench]:
    async with stores.on_postgres(module_database_url) as ports, bench_on(ports) as made:
        yield made


def goes_away_after(upstream: Upstream, monkeypatch: pytest.MonkeyPatch, readies: int) -> None:
    """It is away, but for so many times that it is found to be there."""
    left = [readies]

    async def tools() -> Sequence[Tool]:
        return [Tool("other", "other", "other", {})]

    async def ready(name: str, capabilities: Mapping[str, Any] | None = None) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise errors.UpstreamUnavailable(name, "it is away")

    monkeypatch.setattr(upstream, "tools", tools)
    monkeypatch.setattr(upstream, "ready", ready)


async def test_an_upstream_that_was_there_for_a_moment_has_no_word_on_its_tools(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """Found: away again before its list was read, it let a result pass that nobody had checked."""
    bench.upstream.output_schema = SCHEMA
    task, job = await bench.delegated()
    goes_away_after(bench.upstream, monkeypatch, 1)
    answer = await job.completes(RESULT, "evt_1")
    assert (answer.status_code, answer.headers.get("retry-after")) == (503, "1")
    assert (await bench.load(task)).status is TaskStatus.WORKING
    monkeypatch.undo()
    assert (await job.completes(RESULT, "evt_1")).status_code == 400
