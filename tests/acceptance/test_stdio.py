"""`outlast stdio`, the real process, as the clients that start it see it."""

import fcntl
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from outlast.tests.acceptance.stdio_store import until_no_store
from outlast.tests.acceptance.waiting import until_file_says
from outlast.tests.delivery.posting import bound
from outlast.tests.support.lines import ANSWER_S_MAX, END_S_MAX, Talk, talking
from outlast.tests.support.mcp import envelope
from outlast.tests.support.serving import OUTLAST, command_of

pytestmark = pytest.mark.anyio

UPSTREAM = Path(__file__).with_name("slow_server.py")
MIRRORED = Path(__file__).with_name("stdio_server.py")
PRINTING = """
from outlast.service import jsonrpc
from outlast.service.cli import main
parse = jsonrpc.parse
def chatty(body):
    print("astray", flush=True)
    return parse(body)
jsonrpc.parse = chatty
main()
"""
LINE_BYTES_MAX = 4 * 1024 * 1024
TASKS = ("sleep_forever", "count", "fails")
POLICY = "".join(f'[tools.{tool}]\nrun = "task"\npoll_interval = "100ms"\n' for tool in TASKS)
DIRECT = '[defaults]\nrun = "direct"\n'  # however long it takes on this machine
CONFIG = f"{DIRECT}[upstreams.slow]\ncommand = {command_of(UPSTREAM)}\n{POLICY}"
UNDECLARED: dict[str, object] = {}


def arguments(folder: Path, config: str = CONFIG) -> list[str]:
    file = folder / "outlast.toml"
    file.write_text(config)
    return ["--config", str(file)]


@pytest.fixture
async def talk(tmp_path: Path, database_url: str) -> AsyncIterator[Talk]:
    """A client over a store that is there, whose `slow_echo` is no task."""
    flags = [*arguments(tmp_path), "--database-url", database_url]
    async with talking(tmp_path, flags) as started:
        yield started


# --- the official client


@pytest.mark.promise("stdio-serves-all-at-once")
@pytest.mark.parametrize(("mode", "version"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
async def test_the_official_client_lists_calls_and_reads(
    mode: str, version: str, tmp_path: Path, database_url: str
):
    flags = ["stdio", *arguments(tmp_path), "--database-url", database_url]
    server = StdioServerParameters(
        command=str(OUTLAST), args=flags, cwd=tmp_path, env=dict(os.environ)
    )
    told: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(progress)

    with (tmp_path / "client.log").open("w") as log:
        async with Client(stdio_client(server, log), mode=mode) as client:  # pyright: ignore[reportArgumentType]  # a Literal
            assert client.protocol_version == version
            assert "slow_echo" in {tool.name for tool in (await client.list_tools()).tools}
            result = await client.call_tool(
                "slow_echo", {"text": "hi"}, progress_callback=on_progress
            )
            assert [getattr(part, "text", None) for part in result.content] == ["hi"]
            contents = (await client.read_resource("notes://today")).contents
            assert [getattr(part, "text", None) for part in contents] == ["Water the plants"]
    assert told, "no progress came"


# --- messages


@pytest.mark.promise("stdio-says-messages-only")
async def test_bad_lines_are_answered_with_their_error_and_the_process_lives(talk: Talk):
    for line, code in (
        (b"{oops", -32700),
        (b"\xff\xfe", -32700),
        (b"[]", -32600),
        (b'"x"', -32600),
        (b"x" * (LINE_BYTES_MAX + 1), -32600),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600),
    ):
        await talk.write(line)
        assert (await talk.hear())["error"]["code"] == code, line[:40]
    for line in (b"", b"  ", b'{"jsonrpc":"2.0","method":"notifications/whatever"}'):
        await talk.write(line)
    assert (await talk.ask("no/such"))["error"]["code"] == -32601
    old = {"jsonrpc": "2.0", "id": "q", "method": "tools/list", "params": {}}
    await talk.write(json.dumps(old).encode())
    refused = await talk.hear()
    assert (refused["id"], refused["error"]["code"]) == ("q", -32602)
    assert "tools" in (await talk.ask("tools/list"))["result"]


@pytest.mark.promise("stdio-says-messages-only")
async def test_a_line_may_come_in_pieces_and_several_at_once(talk: Talk):
    assert talk.process.stdin is not None
    long = {"text": "x" * 1_000_000, "seconds": 0}
    asked = [await talk.say("tools/call", {"name": "slow_echo", "arguments": long})]
    asked += [await talk.say("tools/list") for _ in range(20)]
    got = [await talk.hear() for _ in asked]
    assert {line["id"] for line in got} == set(asked)
    assert all("result" in line for line in got), got


@pytest.mark.promise("stdio-says-messages-only")
async def test_what_an_upstream_and_libraries_print_is_not_on_the_output(
    tmp_path: Path, database_url: str
):
    config = f"{DIRECT}[upstreams.one]\ncommand = {command_of(MIRRORED)}\n"
    flags = [*arguments(tmp_path, config), "--database-url", database_url, "--log-level", "debug"]
    async with talking(tmp_path, flags) as talk:
        called = await talk.call("where", {"region": "eu"})
        # No header repeats the argument here, as there are none.
        assert called["result"]["content"][0]["text"] == "eu"
    assert "printed to standard error" in talk.log.read_text()


@pytest.mark.promise("stdio-says-messages-only")
async def test_what_our_own_process_prints_is_not_on_the_output(tmp_path: Path, database_url: str):
    flags = [*arguments(tmp_path), "--database-url", database_url]
    async with talking(tmp_path, flags, outlast=[sys.executable, "-c", PRINTING]) as talk:
        await talk.ask("tasks/get", {"taskId": "x"})
        await talk.hang_up()
        assert await talk.rest() == []
    assert "astray" in talk.log.read_text()


# --- many at once


@pytest.mark.promise("stdio-serves-all-at-once")
async def test_a_slow_request_holds_up_no_other(talk: Talk, tmp_path: Path):
    go = {"path": str(tmp_path / "go"), "text": "late"}
    asked = {"name": "echo_once_there_is", "arguments": go}
    slow = await talk.say("tools/call", asked, UNDECLARED)
    await until_file_says(tmp_path / "go.waits", "waits", ANSWER_S_MAX)
    await talk.ask("tools/list")
    assert slow not in {line.get("id") for line in talk.heard}
    (tmp_path / "go").touch()
    late = await talk.answer(slow)
    assert late["result"]["content"][0]["text"] == "late"


@pytest.mark.promise("stdio-serves-all-at-once")
async def test_progress_comes_before_the_answer_that_it_is_about(talk: Talk):
    called = await talk.call("slow_echo", {"text": "x"}, meta={"progressToken": "mine"})
    told = [line["params"] for line in talk.heard if line.get("method") == "notifications/progress"]
    assert told
    assert {params["progressToken"] for params in told} == {"mine"}
    assert talk.heard[-1] == called


@pytest.mark.promise("stdio-serves-all-at-once")
async def test_a_cancelled_request_is_stopped_and_never_answered(talk: Talk, tmp_path: Path):
    marker = tmp_path / "marker"
    named = {"name": "sleep_forever", "arguments": {"marker": str(marker)}}
    request = await talk.say("tools/call", named, UNDECLARED)
    await until_file_says(marker, "started", ANSWER_S_MAX)
    await talk.notify("notifications/cancelled", {"requestId": request})
    await until_file_says(marker, "stopped")
    await talk.ask("tools/list")
    await talk.hang_up()
    await talk.rest()
    assert request not in {line.get("id") for line in talk.heard}


@pytest.mark.promise("stdio-serves-all-at-once")
async def test_a_task_is_watched_on_the_same_line_as_everything_else(talk: Talk, tmp_path: Path):
    task_id = await talk.opened("count", {"path": str(tmp_path / "counted")})
    listening = await talk.say("subscriptions/listen", {"notifications": {"taskIds": [task_id]}})
    await talk.ask("tools/list")
    await talk.answer(listening)
    key = "io.modelcontextprotocol/subscriptionId"
    told = [line["params"] for line in talk.heard if line.get("method") == "notifications/tasks"]
    assert told[-1]["status"] == "completed"
    assert {params["_meta"][key] for params in told} == {listening}


@pytest.mark.promise("stdio-serves-all-at-once")
async def test_a_client_that_reads_nothing_is_waited_for_and_loses_nothing(talk: Talk):
    long, asked = {"text": "x" * 100_000, "seconds": 0}, list[int]()
    for _ in range(60):
        asked.append(await talk.say("tools/call", {"name": "slow_echo", "arguments": long}, {}))
    got = [await talk.hear() for _ in asked]
    assert sorted(line["id"] for line in got) == asked
    assert all(len(line["result"]["content"][0]["text"]) == 100_000 for line in got)


# --- the beginning and the end


@pytest.mark.promise("stdio-answers-before-the-store")
async def test_what_needs_no_store_is_answered_while_it_is_still_starting(tmp_path: Path):
    (tmp_path / ".outlast").mkdir(mode=0o700)
    # As if a store that nobody uses any more were just ending: who comes now waits for its end.
    with (tmp_path / ".outlast" / "users.lock").open("w") as ending:
        fcntl.flock(ending, fcntl.LOCK_EX)
        async with talking(tmp_path, arguments(tmp_path)) as talk:
            waiting = await talk.say("tasks/get", {"taskId": "x"})
            found = (await talk.ask("server/discover"))["result"]
            assert "io.modelcontextprotocol/tasks" in found["capabilities"]["extensions"]
            assert (await talk.ask("tools/list"))["result"]["tools"]
            assert waiting not in {line["id"] for line in talk.heard}
            fcntl.flock(ending, fcntl.LOCK_UN)
            assert (await talk.answer(waiting))["error"]["code"] == -32602
            await talk.hang_up()
            assert await talk.ended() == 0
    await until_no_store(tmp_path)


@pytest.mark.promise("stdio-ends-in-order")
async def test_a_client_that_leaves_early_waits_for_no_store(tmp_path: Path):
    (tmp_path / ".outlast").mkdir(mode=0o700)
    with (tmp_path / ".outlast" / "users.lock").open("w") as ending:
        fcntl.flock(ending, fcntl.LOCK_EX)
        patient = {"OUTLAST_DRAIN_S": "600"}
        async with talking(tmp_path, arguments(tmp_path), patient) as talk:
            await talk.ask("server/discover")
            await talk.hang_up()
            assert await talk.ended() == 0


async def test_a_store_that_cannot_be_had_is_told_to_who_waits_and_to_who_started_it(
    tmp_path: Path,
):
    with bound() as closed:  # held, so that nobody else listens there, and not listened on
        url = f"postgresql://x@127.0.0.1:{closed.getsockname()[1]}/x"
        async with talking(tmp_path, [*arguments(tmp_path), "--database-url", url]) as talk:
            request = await talk.say("tasks/get", {"taskId": "x"})
            assert [(line["id"], line["error"]["code"]) for line in await talk.rest()] == [
                (request, -32603)
            ]
            assert await talk.ended() == 2
    assert "outlast: " in talk.log.read_text()


@pytest.mark.promise("stdio-ends-in-order")
async def test_a_closed_input_lets_the_last_requests_be_answered(talk: Talk):
    await talk.ask("tools/list")  # the upstream's start is no part of the time that is left
    request = await talk.say(
        "tools/call", {"name": "slow_echo", "arguments": {"text": "last", "seconds": 1}}, UNDECLARED
    )
    await talk.hang_up()
    lines = await talk.rest()
    assert [line["id"] for line in lines] == [request]
    assert lines[0]["result"]["content"][0]["text"] == "last"
    assert await talk.ended() == 0


@pytest.mark.promise("stdio-ends-in-order")
async def test_a_closed_input_ends_watches_with_their_result(talk: Talk):
    listening = await talk.say(
        "subscriptions/listen", {"notifications": {"toolsListChanged": True}}
    )
    assert (await talk.hear())["method"] == "notifications/subscriptions/acknowledged"
    await talk.hang_up()
    assert [line["id"] for line in await talk.rest()] == [listening]
    assert await talk.ended() == 0


@pytest.mark.promise("stdio-ends-in-order")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it(talk: Talk, how: signal.Signals):
    await talk.ask("tasks/get", {"taskId": "x"})
    talk.process.send_signal(how)
    assert await talk.ended() == 0


@pytest.mark.promise("stdio-ends-in-order")
async def test_a_second_sign_cuts_short_what_still_runs(tmp_path: Path, database_url: str):
    marker, patient = tmp_path / "marker", {"OUTLAST_DRAIN_S": "600"}
    flags = [*arguments(tmp_path), "--database-url", database_url]
    async with talking(tmp_path, flags, patient) as talk:
        await talk.opened("sleep_forever", {"marker": str(marker)})
        await until_file_says(marker, "started", ANSWER_S_MAX)
        watch = {"notifications": {"toolsListChanged": True}}
        listening = await talk.say("subscriptions/listen", watch)
        await talk.hang_up()
        await talk.answer(listening)  # it has seen that its input is closed
        talk.process.terminate()
        assert await talk.ended() == 0
        await until_file_says(marker, "stopped")


@pytest.mark.promise("stdio-ends-in-order")
async def test_a_client_that_closes_its_ear_ends_it(tmp_path: Path, database_url: str):
    ear, mouth = os.pipe()
    flags = [*arguments(tmp_path), "--database-url", database_url]
    with (tmp_path / "stdio.log").open("w") as log:
        process = await anyio.open_process(
            [str(OUTLAST), "stdio", *flags], cwd=tmp_path, stdout=mouth, stderr=log
        )
    os.close(mouth)
    try:
        assert process.stdin is not None
        request = json.dumps(envelope("tools/list")).encode() + b"\n"
        await process.stdin.send(request)
        assert await anyio.to_thread.run_sync(os.read, ear, 1)
        os.close(ear)
        await process.stdin.send(request)
        with anyio.fail_after(END_S_MAX):
            assert await process.wait() == 0, (tmp_path / "stdio.log").read_text()
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()
