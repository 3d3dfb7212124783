"""What a job elsewhere calls back with: taken once, fenced, signed, and held against the schema."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import httpx2
import pytest

from outlast.domain import decisions, errors, jobs
from outlast.domain.decisions import Events
from outlast.domain.events import ProgressReported, TaskCompleted, TaskEvent
from outlast.domain.task import Task, TaskStatus
from outlast.service import callbacks
from outlast.service.callbacks import Callbacks, Tickets
from outlast.service.commands import Commands
from outlast.tests.contracts import stores
from outlast.tests.domain.given import ERROR, RESULT, opened, running
from outlast.tests.service.callback_bench import (
    KEY,
    SCHEMA,
    Bench,
    Clock,
    Job,
    Upstream,
    app_of,
    bench_on,
    delegates,
    is_signed,
    loses,
    starts,
)

pytestmark = pytest.mark.anyio

RACERS = 12


@pytest.fixture(scope="module")
async def shared(module_database_url: str) -> AsyncIterator[Bench]:
    async with stores.on_postgres(module_database_url) as ports, bench_on(ports) as bench:
        yield bench


@pytest.fixture
def bench(shared: Bench) -> Bench:
    """The one of this module, as good as new."""
    shared.upstream.__init__()
    shared.clock.__init__()
    return shared


def cancels(clock: Clock) -> Callable[[Task], Events]:
    return lambda task: decisions.request_cancel(task, clock())


# Taken.


async def test_a_job_tells_how_far_it_is_and_how_it_ended(bench: Bench):
    task, job = await bench.delegated()
    body = {"type": "progress", "progress": 1, "total": 4, "message": "compiling"}
    assert (await job.posts(body)).status_code == 204
    task = await bench.load(task)
    assert (task.status, task.status_message) == (TaskStatus.WORKING, "compiling")
    assert (await job.completes()).status_code == 204
    task = await bench.load(task)
    assert task.status is TaskStatus.COMPLETED
    assert task.result == {"resultType": "complete", **RESULT}


@pytest.mark.parametrize(
    "error", [ERROR, {"code": -32000, "message": "no data"}], ids=["data", "no data"]
)
async def test_a_protocol_error_fails_the_task_with_that_very_error(bench: Bench, error: Any):
    task, job = await bench.delegated()
    answer = await job.posts({"type": "failed", "error": error})
    task = await bench.load(task)
    assert (answer.status_code, task.status, task.error) == (204, TaskStatus.FAILED, error)


async def test_a_tool_error_completes_the_task_and_needs_no_schema(bench: Bench):
    bench.upstream.output_schema = SCHEMA
    task, job = await bench.delegated()
    result = {"content": [{"type": "text", "text": "it does not link"}], "isError": True}
    assert (await job.completes(result)).status_code == 204
    task = await bench.load(task)
    assert task.result == {"resultType": "complete", **result}


# Once each.


@pytest.mark.promise("callbacks-count-once")
async def test_a_callback_that_comes_again_is_answered_again_and_recorded_once(bench: Bench):
    task, job = await bench.delegated()
    answers = [await job.progresses(1, "evt_1") for _ in range(3)]
    answers += [await job.completes(callback_id="evt_2") for _ in range(3)]
    answers += [await job.progresses(1, "evt_1")]
    assert {answer.status_code for answer in answers} == {204}
    told = Counter(type(event) for event in await bench.ports.log.read(task.id))
    assert (told[ProgressReported], told[TaskCompleted]) == (1, 1)


@pytest.mark.promise("callbacks-count-once")
async def test_of_one_callback_sent_many_times_at_once_one_is_recorded(bench: Bench):
    task, job = await bench.delegated()
    answers = await asyncio.gather(*(job.progresses(1, "evt_1") for _ in range(RACERS)))
    assert {answer.status_code for answer in answers} == {204}
    assert (await bench.load(task)).heard == ("evt_1",)


async def test_of_many_outcomes_at_once_one_counts_and_the_others_are_told(bench: Bench):
    task, job = await bench.delegated()
    answers = await asyncio.gather(*(job.completes() for _ in range(RACERS)))
    statuses = Counter(answer.status_code for answer in answers)
    assert statuses == {204: 1, 410: RACERS - 1}
    assert (await bench.load(task)).version == task.version + 1


# Too early, too late, and of another attempt.


async def test_a_callback_that_beats_its_tools_return_is_to_come_again(bench: Bench):
    task = await bench.opened()
    job = bench.job(task)
    early = await job.completes(callback_id="evt_1")
    assert (early.status_code, early.headers["retry-after"]) == (425, "1")
    await bench.commands.change(task.id, delegates(bench.clock))
    assert (await job.completes(callback_id="evt_1")).status_code == 204
    assert (await bench.load(task)).status is TaskStatus.COMPLETED


@pytest.mark.promise("callbacks-count-once")
async def test_the_job_of_an_attempt_that_was_lost_is_fenced_off(bench: Bench):
    first = await bench.opened(rerun_is_safe=True)
    old = bench.job(first)
    await bench.commands.change(first.id, loses(bench.clock))
    assert (await old.completes()).status_code == 409
    second = await bench.commands.change(first.id, starts(bench.clock, "worker-b"))
    assert (await old.completes()).status_code == 409
    await bench.commands.change(first.id, delegates(bench.clock))
    assert (await old.completes()).status_code == 409
    assert (await old.progresses(1)).status_code == 409
    assert (await bench.load(first)).heard == ()
    assert (await bench.job(second).completes()).status_code == 204
    assert (await old.completes()).status_code == 410


@pytest.mark.parametrize("way", ["cancelled", "given up", "stored no more"])
@pytest.mark.promise("callbacks-count-once")
async def test_a_callback_after_the_end_is_told_that_it_is_too_late(bench: Bench, way: str):
    task, job = await bench.delegated()
    if way == "given up":
        task = await bench.opened(delegates(bench.clock, bench.clock()))
        job = bench.job(task)
        later = bench.clock() + timedelta(seconds=1)
        await bench.commands.change(task.id, lambda task: jobs.end_overdue(task, later))
    else:
        await bench.commands.change(task.id, cancels(bench.clock))
    ended = await bench.load(task)
    assert ended.status.is_terminal
    if way == "stored no more":
        await bench.ports.views.forget([task.id])
    for answer in (await job.completes(), await job.progresses(1)):
        assert answer.status_code == 410
    if way != "stored no more":
        assert await bench.load(task) == ended


async def test_progress_is_recorded_once_a_second(bench: Bench):
    bench.clock.stop()
    task, job = await bench.delegated()
    assert (await job.progresses(1)).status_code == 204
    soon = await job.progresses(2, "evt_2")
    assert (soon.status_code, soon.headers["retry-after"]) == (429, "1")
    bench.clock.ahead += timedelta(seconds=1)
    assert (await job.progresses(3)).status_code == 204
    bench.clock.ahead += timedelta(seconds=1)
    behind = await job.progresses(2, "evt_2")
    task = await bench.load(task)
    assert (behind.status_code, task.progress) == (204, 3)


# Who may.


async def test_a_callback_without_a_valid_signature_changes_nothing(bench: Bench):
    task, job = await bench.delegated()
    _, other = await bench.delegated()
    text = '{"type":"progress","progress":1}'
    right = job.signed(text, "evt_1")
    now = datetime.now(UTC)
    forged: list[dict[str, str]] = [
        {},
        right | {"webhook-id": "evt_2"},
        right | {"webhook-timestamp": str(int(now.timestamp()) + 1)},
        right | {"webhook-signature": "v1,"},
        {name: value for name, value in right.items() if name != "webhook-id"},
        other.signed(text, "evt_1"),
        job.signed(text + " ", "evt_1"),
        job.signed(text, "evt_1", now - timedelta(minutes=6)),
        job.signed(text, "evt_1", now + timedelta(minutes=6)),
    ]
    for headers in forged:
        answer = await bench.http.post(job.url, content=text.encode(), headers=headers)
        assert answer.status_code == 401, headers
    assert await bench.load(task) == task
    answer = await bench.http.post(job.url, content=text.encode(), headers=right)
    assert answer.status_code == 204


async def test_a_replayed_callback_does_not_pass_under_a_second_id(bench: Bench):
    task, job = await bench.delegated()
    text = '{"type":"progress","progress":1}'
    right = list(job.signed(text, "evt_1").items())
    for headers in ([("webhook-id", "evt_2"), *right], [*right, ("webhook-id", "evt_2")]):
        await bench.http.post(job.url, content=text.encode(), headers=headers)
    assert set((await bench.load(task)).heard) <= {"evt_1"}


def _mangled(token: str) -> Sequence[str]:
    return ["x", "v1.", token[:-1], token + "A", token.swapcase(), "%00", "é", "a" * 4_000]


async def test_a_url_that_we_did_not_make_is_not_there(bench: Bench):
    task, job = await bench.delegated()
    base, _, token = job.url.rpartition("/")
    of_another_key = Tickets("another key", base.removesuffix("/callbacks")).offer(task)
    assert of_another_key is not None
    for url in [*(f"{base}/{bad}" for bad in _mangled(token)), of_another_key["url"]]:
        answer = await Job(url, job.secret, bench.http).progresses(1)
        assert answer.status_code == 404, url


def test_a_callback_is_made_for_one_attempt_and_known_on_every_replica():
    first = running(rerun_is_safe=True)
    second = running(rerun_is_safe=True, task_id="another")
    one, two = Tickets(KEY, "https://a.example/"), Tickets(KEY, "https://b.example")
    offered = [one.offer(task) for task in (opened(), first, second)]
    urls = [offer["url"] for offer in offered if offer]
    assert len({offer["secret"] for offer in offered if offer}) == 3
    assert all(url.startswith("https://a.example/callbacks/v1.") for url in urls)
    ticket = two.open(urls[1].rpartition("/")[2])
    assert ticket is not None
    assert (ticket.task_id, ticket.attempt) == (first.id, 1)
    assert one.secret(ticket) == two.secret(ticket)
    assert first.id not in urls[1]


def test_without_a_public_url_there_is_no_callback():
    assert Tickets(KEY, None).offer(running()) is None


# Malformed, and not a result of this tool.

MALFORMED: dict[str, Any] = {
    "no JSON": "{",
    "not an object": [],
    "no type": {"progress": 1},
    "an unknown type": {"type": "cancelled"},
    "no number": {"type": "progress", "progress": "1"},
    "true for a number": {"type": "progress", "progress": True},
    "infinite": '{"type":"progress","progress":1e999}',
    "not a number": '{"type":"progress","progress":NaN}',
    "a long message": {"type": "progress", "progress": 1, "message": "x" * 5_000},
    "no result": {"type": "completed"},
    "a result without content": {"type": "completed", "result": {}},
    "a result that asks": {
        "type": "completed",
        "result": {"resultType": "input_required", "inputRequests": {}, "content": []},
    },
    "isError as text": {"type": "completed", "result": {"content": [], "isError": "no"}},
    "no content at all": {"type": "completed", "result": {"content": [{"type": "text"}]}},
    "a code as text": {"type": "failed", "error": {"code": "1", "message": "x"}},
    "an error without message": {"type": "failed", "error": {"code": 1}},
    "a deep one": '{"type":"completed","result":{"content":[],"structuredContent":'
    + "[" * 70
    + "]" * 70
    + "}}",
    "a lone surrogate": '{"type":"progress","progress":1,"message":"\\ud800"}',
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_callback_leaves_the_task_as_it_was(bench: Bench, body: Any):
    task, job = await bench.delegated()
    answer = await job.posts(body, "evt_1")
    assert (answer.status_code, bool(answer.json()["error"])) == (400, True)
    assert await bench.load(task) == task
    assert (await job.completes(callback_id="evt_1")).status_code == 204


@pytest.mark.parametrize("structured", [None, {"size": "large"}, []], ids=["none", "text", "list"])
async def test_a_result_that_does_not_fit_the_schema_may_be_corrected(
    bench: Bench, structured: Any
):
    bench.upstream.output_schema = SCHEMA
    task, job = await bench.delegated()
    wrong = RESULT if structured is None else RESULT | {"structuredContent": structured}
    answer = await job.completes(wrong, "evt_1")
    assert answer.status_code == 400
    assert "outputSchema" in answer.json()["error"]
    assert await bench.load(task) == task
    right = RESULT | {"structuredContent": {"size": 3}}
    assert (await job.completes(right, "evt_1")).status_code == 204
    assert (await bench.load(task)).result == {"resultType": "complete", **right}


@pytest.mark.parametrize(
    "schema", [{"type": 7}, {"$ref": "https://example.invalid/schema"}], ids=["wrong", "elsewhere"]
)
async def test_a_schema_that_nothing_can_be_held_against_stops_no_job(bench: Bench, schema: Any):
    bench.upstream.output_schema = schema
    _, job = await bench.delegated()
    result = RESULT | {"structuredContent": {"size": 3}}
    assert (await job.completes(result)).status_code == 204


async def test_while_the_upstream_is_away_a_result_is_to_come_again(bench: Bench):
    bench.upstream.output_schema = SCHEMA
    task, job = await bench.delegated()
    bench.upstream.is_away = True
    away = await job.completes(RESULT, "evt_1")
    assert (away.status_code, away.headers["retry-after"]) == (503, "1")
    assert (await job.progresses(1)).status_code == 204
    bench.upstream.is_away = False
    assert (await job.completes(RESULT, "evt_1")).status_code == 400
    bench.upstream.is_listed = False  # a tool that is gone has no schema either
    assert (await job.completes(RESULT, "evt_1")).status_code == 204
    assert (await bench.load(task)).status is TaskStatus.COMPLETED


# Limits.


async def test_a_body_beyond_the_limit_is_refused_however_it_is_sent(bench: Bench):
    task, job = await bench.delegated()
    large = " " * (callbacks.BODY_BYTES_MAX + 1)
    headers = job.signed(large, "evt_1")

    async def chunks() -> AsyncIterator[bytes]:
        yield large.encode()

    for content in (large.encode(), chunks()):
        answer = await bench.http.post(job.url, content=content, headers=headers)
        assert answer.status_code == 413
    assert await bench.load(task) == task


async def test_a_body_that_never_comes_is_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(callbacks, "BODY_S_MAX", 0.1)
    _, job = await bench.delegated()
    url = httpx2.URL(job.url)
    head = f"POST {url.path} HTTP/1.1\r\nHost: local\r\nContent-Length: 9\r\n\r\n{{"
    with anyio.fail_after(20):
        async with await anyio.connect_tcp(url.host, url.port or 80) as stream:
            await stream.send(head.encode())
            assert (await stream.receive()).startswith(b"HTTP/1.1 408 ")


class _Away:
    """A store that cannot be reached."""

    async def append(self, before: Task | None, events: Events) -> Task:
        raise errors.StoreUnavailable

    async def read(self, task_id: str) -> Sequence[TaskEvent]:
        raise errors.StoreUnavailable

    async def tail(
        self, task_id: str, version: int | None = None
    ) -> tuple[Task | None, Sequence[TaskEvent]]:
        raise errors.StoreUnavailable


async def test_while_the_store_is_away_a_callback_is_to_come_again(bench: Bench):
    task, job = await bench.delegated()
    away = Callbacks(bench.tickets, Commands(_Away(), bench.clock), Upstream(), is_signed)
    path = httpx2.URL(job.url).path
    transport = httpx2.ASGITransport(app_of(away.post))
    async with httpx2.AsyncClient(transport=transport, base_url="http://local") as http:
        answer = await Job(f"http://local{path}", job.secret, http).completes()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert await bench.load(task) == task
