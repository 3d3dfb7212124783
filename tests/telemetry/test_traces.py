"""One trace over the life of a task, as a collector sees it that any operator could run."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from outlast.service.tracing.spans import ATTRIBUTES, SPANS
from outlast.tests.acceptance.waiting import until, until_file_says
from outlast.tests.chaos.nodes import Node
from outlast.tests.delivery.webhook_world import SECRET, hook
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.ports import free_port
from outlast.tests.support.serving import serving
from outlast.tests.telemetry.collector import Collector, Span
from outlast.tests.telemetry.conftest import config_text

pytestmark = pytest.mark.anyio

BOUND_S = 90.0
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=here"}
SERVER, CLIENT, PRODUCER, CONSUMER = 2, 3, 4, 5  # the kinds, by their numbers on the wire
CANARY = "canary-that-must-not-be-told"


def arrived(collector: Collector, name: str, count: int = 1) -> Callable[[], Awaitable[bool]]:
    async def has() -> bool:
        return len(collector.named(name)) >= count

    return has


def ready(client: RawClient) -> Callable[[], Awaitable[bool]]:
    async def is_ready() -> bool:
        with suppress(httpx2.TransportError):
            return (await client.http.get(client.url.replace("/mcp", "/readyz"))).is_success
        return False

    return is_ready


def only(spans: list[Span]) -> Span:
    (span,) = spans
    return span


def known(spans: list[Span]) -> None:
    """What is sent is on the page of what may be sent."""
    for span in spans:
        assert set(span.attributes) <= set(ATTRIBUTES), span
        assert span.name.split()[0] in SPANS or span.name == span.attributes["mcp.method.name"]


@pytest.mark.promise("a-task-is-one-trace")
async def test_request_attempt_call_and_delivery_are_linked_spans_of_the_callers_trace(
    tmp_path: Path, database_url: str, collector: Collector
):
    config = config_text("[events]\ndevelopment = true")
    (tmp_path / "note.go").write_text("go")
    async with (
        hook() as endpoint,
        http_client() as http,
        serving(tmp_path, config, database_url) as server,
    ):
        client = RawClient(server.url, http)
        delivery = {"mode": "webhook", "url": endpoint.url, "secret": SECRET}
        wanted = {"name": "task.finished", "delivery": delivery}
        assert "id" in (await client.request("events/subscribe", wanted)).result
        arguments = {"path": str(tmp_path / "note")}
        created = (await client.call("slowly", arguments, meta=PARENT)).result
        await client.until_status(created["taskId"], "completed", seconds=BOUND_S)
        (post,) = await endpoint.got(1)
        await until(arrived(collector, "deliver"), BOUND_S)
    task_id = created["taskId"]
    request = only(collector.named("tools/call slowly", SERVER))
    create = only(collector.named("create"))
    run = only(collector.named("run slowly"))
    call = only(collector.named("tools/call slowly", CLIENT))
    deliver = only(collector.named("deliver"))
    assert request.trace_id == TRACE
    assert request.parent_id == CALLER
    assert request.attributes["outlast.task.id"] == task_id
    assert create.parent_id == request.span_id
    for later in (run, deliver):
        assert later.trace_id == TRACE
        assert later.links == [(TRACE, request.span_id)]
        assert later.attributes["outlast.task.id"] == task_id
    assert (run.kind, deliver.kind) == (CONSUMER, PRODUCER)
    assert run.attributes["outlast.task.status"] == "completed"
    assert call.parent_id == run.span_id
    assert "traceparent" not in post.headers
    assert collector.services == {"outlast"}
    known(collector.spans)


async def test_the_upstream_is_told_the_place_of_its_own_call(
    tmp_path: Path, database_url: str, collector: Collector
):
    async with serving(tmp_path, config_text(), database_url) as server, http_client() as http:
        client = RawClient(server.url, http)
        answer = (await client.call("where", {"secret": CANARY}, meta=PARENT)).result
    call = only(collector.named("tools/call where", CLIENT))
    assert answer["content"][0]["text"].startswith(f"00-{TRACE}-{call.span_id}-")
    assert all(CANARY.encode() not in span.told for span in collector.spans)


async def test_a_failure_is_named_and_its_words_are_not_told(
    tmp_path: Path, database_url: str, collector: Collector
):
    async with serving(tmp_path, config_text(), database_url) as server, http_client() as http:
        client = RawClient(server.url, http)
        task_id = await client.opened("red")
        task = await client.until_status(task_id, "completed", "failed", seconds=BOUND_S)
        assert "The build is red" in str(task)
        error = (await client.call("no-such-tool")).body["error"]
    call = only(collector.named("tools/call red", CLIENT))
    assert (call.is_error, call.attributes["error.type"]) == (True, "tool_error")
    refused = only(collector.named("tools/call no-such-tool", SERVER))
    assert refused.is_error
    for words in ("build is red", error["message"]):
        assert all(words.encode() not in span.told for span in collector.spans)


@pytest.mark.promise("a-task-is-one-trace")
async def test_a_task_whose_worker_was_killed_goes_on_in_the_same_trace(
    tmp_path: Path, database_url: str, collector: Collector
):
    note = tmp_path / "note"
    file, port = tmp_path / "outlast.toml", free_port()
    file.write_text(config_text())
    arguments = ["serve", "--config", str(file), "--port", str(port)]
    env = {"OUTLAST_DATABASE_URL": database_url}
    node = Node(tmp_path, "serve", arguments, env)
    url = f"http://127.0.0.1:{port}/mcp"
    async with http_client() as http:
        client = RawClient(url, http)
        try:
            node.start()
            await until(ready(client), BOUND_S)
            created = await client.call("slowly", {"path": str(note)}, meta=PARENT)
            await until_file_says(note, ".", BOUND_S)
            await until(arrived(collector, "tools/call slowly"), BOUND_S)
            node.kill()
            node.start()
            await until_file_says(note, "..", BOUND_S)
            note.with_suffix(".go").write_text("go")
            task_id = created.result["taskId"]
            await client.until_status(task_id, "completed", seconds=BOUND_S)
            await until(arrived(collector, "run slowly"), BOUND_S)
        finally:
            await node.make_gone()
    request = only(collector.named("tools/call slowly", SERVER))
    run = only(collector.named("run slowly"))
    assert run.attributes["outlast.task.attempt"] == 2
    assert (run.trace_id, run.links) == (TRACE, [(TRACE, request.span_id)])


async def test_without_a_collector_nothing_is_traced_and_the_callers_context_is_passed_on(
    tmp_path: Path, database_url: str
):
    async with serving(tmp_path, config_text(), database_url) as server, http_client() as http:
        client = RawClient(server.url, http)
        answer = (await client.call("where", meta=PARENT)).result
    assert answer["content"][0]["text"] == PARENT["traceparent"]


async def test_a_collector_that_is_away_holds_up_neither_an_answer_nor_the_end(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    async with serving(tmp_path, config_text(), database_url) as server, http_client() as http:
        client = RawClient(server.url, http)
        assert (await client.call("where")).result["content"]
