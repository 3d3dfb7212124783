"""What a script sees: lines and results apart, JSON, exit codes, tasks that outlive a command."""

import io
import json
import signal
import sqlite3
from pathlib import Path

import anyio
import pytest
from rich.console import Console

from outlast.service.cli.client import ways
from outlast.tests.acceptance.waiting import until, until_file_says
from outlast.tests.client_cli.conftest import Cli
from outlast.tests.support.ports import free_port

pytestmark = pytest.mark.anyio

VIAS = ["poll", "listen", "websocket", "webhook", "auto"]


async def test_the_result_alone_goes_to_standard_output(cli: Cli):
    done = await cli.run("call", "count", "steps=1")
    assert (done.code, done.out) == (0, "counted 1\n")
    lines = done.err.splitlines()
    assert lines[0].startswith("task ")
    assert lines[0].endswith(" (count)")
    assert lines[-1] == "task: completed"
    assert "\x1b" not in done.out + done.err


@pytest.mark.parametrize("via", VIAS)
async def test_json_tells_each_state_and_then_the_outcome_by_every_way(cli: Cli, via: str):
    done = await cli.run("call", "count", "steps=2", "--json", "--via", via)
    assert done.code == 0, done.err
    kinds = [fact["kind"] for fact in done.told]
    assert kinds[0] == "task"
    assert kinds[-1] == "result"
    assert set(kinds[1:-1]) == {"state"}
    versions = [fact["version"] for fact in done.told[1:-1]]
    assert versions == sorted(set(versions))
    last = done.told[-1]
    assert last["taskId"] == done.told[0]["taskId"] == done.told[1]["task"]["taskId"]
    assert last["result"]["content"][0]["text"] == "counted 2"
    assert (last["tool"], last["exitCode"]) == ("count", 0)


async def test_a_webhook_is_received_where_the_command_is_told_to(cli: Cli):
    port = free_port()
    where = ["--webhook-listen", f"127.0.0.1:{port}", "--webhook-url", f"http://127.0.0.1:{port}/"]
    done = await cli.run("call", "count", "steps=1", "--via", "webhook", *where)
    assert (done.code, done.out) == (0, "counted 1\n")


async def test_arguments_are_typed_by_the_schema_and_merged_with_json(cli: Cli, tmp_path: Path):
    words = ["name=7", "count=7", "tags=a", "tags=b", "dry=yes"]
    done = await cli.run("call", "sum_up", *words)
    assert json.loads(done.out) == ["7", 7, ["a", "b"], True]
    (tmp_path / "call.json").write_text('{"name": "file", "count": 2}')
    done = await cli.run("call", "sum_up", "--arguments", "@call.json", "count=3")
    assert json.loads(done.out) == ["file", 3, None, False]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["call", "red"], 1, "The build is red"),
        (["call", "fault"], 1, 'Quota exceeded (-32050) {"retryAfterMs": 1500}'),
        (["call", "sum_up"], 2, "name is missing: outlast call sum_up name=string [count=integer]"),
        (["call", "sum_up", "name=x", "cuont=1"], 2, "did you mean 'count'"),
        (["call", "sum_up", "name=x", "count=x"], 2, "count: 'x' is no integer"),
        (["call", "sum_up", "name=x", "tags:=5", "tags=a"], 2, "tags: 'a' follows what is no list"),
        (["call", "sum"], 2, "no tool 'sum'; did you mean 'sum_up'"),
        (["call", "sum_up", "--arguments", "{"], 2, "--arguments is no JSON"),
        (["call", "sum_up", "name=x", "--timeout", "soon"], 2, "--timeout: a duration"),
        (["watch", "none-such"], 6, "knows no such task"),
        (["watch", "-id-with-a-hyphen"], 6, "knows no such task"),
        (["cancel", "-id-with-a-hyphen"], 6, "knows no such task"),
        (["answer", "none-such", "a=b"], 6, "knows no such task"),
        (["call", "sum_up", "--server", "ftp://x", "name=x"], 2, "http(s) URL"),
        (["call", "sum_up", "name=x", "--token", "a\nb"], 2, "what no header can carry"),
        (["call", "red", "--via", "pigeon"], 2, "pigeon"),
        (["call", "red", "--webhook-listen", "here"], 2, "--webhook-listen is HOST:PORT"),
    ],
)
async def test_what_goes_wrong_has_its_exit_code_and_is_said(
    cli: Cli, words: list[str], code: int, said: str
):
    done = await cli.run(*words)
    assert done.code == code, done.out + done.err
    assert said in done.out + done.err
    assert "Traceback" not in done.err


async def test_a_server_that_is_not_there_has_its_own_exit_code(cli: Cli):
    server = f"http://127.0.0.1:{free_port()}/mcp"
    done = await cli.run("call", "sum_up", "name=x", "--server", server)
    assert (done.code, done.out) == (6, "")
    assert "gives no answer" in done.err


async def test_a_token_is_nowhere_to_be_read(cli: Cli, tmp_path: Path):
    token = "a-very-secret-token"
    done = await cli.run("call", "count", "steps=1", OUTLAST_TOKEN=token)
    refused = await cli.run("watch", "none-such", OUTLAST_TOKEN=token)
    assert refused.code == 6
    assert token not in done.out + done.err + refused.out + refused.err
    for file in (tmp_path / ".outlast").iterdir():
        assert token.encode() not in file.read_bytes()


async def test_a_detached_task_is_watched_by_another_process(cli: Cli, tmp_path: Path):
    task_id = await cli.begun("count", "steps=3")
    rows = (await cli.run("tasks", "--json")).told
    assert [(row["taskId"], row["tool"]) for row in rows] == [(task_id, "count")]
    # Another one that shares nothing with the first but the id.
    done = await cli.run("watch", task_id, "--journal", str(tmp_path / "other.db"))
    assert (done.code, done.out) == (0, "counted 3\n")
    done = await cli.run("watch", task_id)
    assert (done.code, done.out) == (0, "counted 3\n")
    [row] = (await cli.run("tasks", "--json")).told
    assert row["state"] == "completed"


async def test_a_watch_whose_time_is_up_leaves_the_task_running(cli: Cli, tmp_path: Path):
    marker = tmp_path / "marker"
    done = await cli.run("call", "hold", f"marker={marker}", "--timeout", "15s", "--json")
    assert done.code == 4, done.err
    last = done.told[-1]
    assert (last["kind"], last["exitCode"]) == ("left_running", 4)
    await until_file_says(marker, "started")
    cancelled = await cli.run("cancel", last["taskId"], "--json")
    assert cancelled.told[-1]["kind"] == "cancel_requested"
    watched = await cli.run("watch", last["taskId"], "--json")
    assert (watched.code, watched.told[-1]["kind"]) == (3, "cancelled")


async def test_a_question_without_a_terminal_is_printed_and_left_waiting(cli: Cli):
    done = await cli.run("call", "order")
    assert (done.code, done.out) == (5, "")
    assert "waits for an answer that nobody here can give" in done.err
    assert "What may it be?" in done.err
    assert "name [text, at least 2 characters]" in done.err
    assert "express (optional): By tomorrow? [yes or no]" in done.err
    [row] = (await cli.run("tasks", "--unfinished", "--json")).told
    task_id = row["taskId"]
    assert f"outlast answer {task_id} name=…" in done.err
    asked = await cli.run("answer", task_id, "--json")
    assert (asked.code, asked.told[-1]["kind"]) == (5, "waiting")
    wrong = await cli.run("answer", task_id, "name=Ada", "size=huge")
    assert (wrong.code, "size: 'huge' is none of the choices" in wrong.err) == (2, True)
    answered = await cli.run("answer", task_id, "name=Ada", "size=l")
    assert (answered.code, "answered in-1" in answered.err) == (0, True)
    watched = await cli.run("watch", task_id)
    content = {"name": "Ada", "count": 3, "express": False, "size": "l"}
    assert json.loads(watched.out) == {"action": "accept", "content": content}


async def test_a_field_of_several_choices_is_given_in_turns_and_no_other_one(cli: Cli):
    task_id = await cli.begun("order")
    assert (await cli.run("watch", task_id)).code == 5
    twice = await cli.run("answer", task_id, "name=Ada", "size=l", "name=Eve")
    assert (twice.code, twice.err) == (2, "outlast: name is given twice, and takes one value\n")
    done = await cli.run("answer", task_id, "name=Ada", "extras=nuts", "size=l", "extras=milk")
    assert done.code == 0, done.err
    content = json.loads((await cli.run("watch", task_id)).out)["content"]
    assert content["extras"] == ["nuts", "milk"]


@pytest.mark.parametrize(
    ("tool", "words", "answer"),
    [
        ("order", ["--decline"], {"action": "decline"}),
        ("order", ["--dismiss"], {"action": "cancel"}),
        ("visit", ["--accept"], {"action": "accept"}),
        (
            "order",
            ["--responses", '{"in-1": {"action": "accept", "content": {"raw": 1}}}'],
            {"action": "accept", "content": {"raw": 1}},
        ),
    ],
    ids=["decline", "dismiss", "url", "raw"],
)
async def test_a_question_is_answered_by_a_word(
    cli: Cli, tool: str, words: list[str], answer: dict[str, object]
):
    task_id = await cli.begun(tool)
    assert (await cli.run("watch", task_id)).code == 5
    done = await cli.run("answer", task_id, *words)
    assert done.code == 0, done.err
    assert json.loads((await cli.run("watch", task_id)).out) == answer


async def test_no_model_is_offered_to_a_server_that_asks_for_one(cli: Cli):
    done = await cli.run("call", "think")
    assert (done.code, "sampling/createMessage, which the client does not" in done.err) == (1, True)


async def test_a_plain_call_that_asks_is_not_left_behind(cli: Cli):
    done = await cli.run("call", "order_plain")
    assert (done.code, done.out) == (5, "")
    assert "order_plain: waits for an answer that nobody here can give" in done.err
    assert "What may it be?" in done.err
    assert "nothing is unfinished" in (await cli.run("resume")).err


async def test_a_task_is_resumed_after_its_client_was_killed(cli: Cli, tmp_path: Path):
    gate = tmp_path / "gate"  # it opens once the client is dead, and so could not see the end
    async with cli.started("call", "count", "steps=4", f"gate={gate}", "--json") as killed:
        assert killed.stdout is not None
        with anyio.fail_after(60):
            first = json.loads((await killed.stdout.receive()).splitlines()[0])
        killed.send_signal(signal.SIGKILL)
        await killed.wait()
    gate.touch()
    resumed = await cli.run("resume", "--json")
    assert resumed.code == 0, resumed.err
    last = resumed.told[-1]
    assert (last["kind"], last["taskId"], last["tool"]) == ("result", first["taskId"], "count")
    assert last["result"]["content"][0]["text"] == "counted 4"
    assert "nothing is unfinished" in (await cli.run("resume")).err


async def test_resume_follows_all_and_exits_with_the_highest_code(cli: Cli):
    good, asking = await cli.begun("count", "steps=2"), await cli.begun("order")
    done = await cli.run("resume")
    assert done.code == 5
    assert f"task {good}: completed" in done.err
    assert f"task {asking}: waits for an answer" in done.err
    assert done.out == "counted 2\n"


async def test_the_same_key_calls_once(cli: Cli):
    first = await cli.begun("count", "steps=1", "--key", "monday")
    assert await cli.begun("count", "steps=1", "--key", "monday") == first


async def test_an_interrupt_without_a_terminal_leaves_the_task_running(cli: Cli, tmp_path: Path):
    marker = tmp_path / "marker"
    async with cli.started("call", "hold", f"marker={marker}", "--json") as process:
        assert process.stdout is not None
        told = b""
        with anyio.fail_after(60):
            while b'"state"' not in told:  # before it follows the task, it is the call that ends
                told += await process.stdout.receive()
        await until_file_says(marker, "started")
        process.send_signal(signal.SIGINT)
        with anyio.fail_after(60):
            assert await process.wait() == 4
    [row] = (await cli.run("tasks", "--unfinished", "--json")).told
    assert (await cli.run("cancel", row["taskId"])).code == 0


async def test_the_shell_is_offered_tools_and_unfinished_tasks(cli: Cli):
    task_id = await cli.begun("order")

    async def offered(*words: str) -> str:
        line = " ".join(["outlast", *words])
        facts = {"_OUTLAST_COMPLETE": "complete_bash", "COMP_WORDS": line}
        done = await cli.run(**facts, COMP_CWORD=str(len(words)))
        return done.out

    async def is_offered() -> bool:  # a shell waits a moment only: a busy machine takes longer
        return (await offered("call", "s")).split() == ["sum_up"]

    await until(is_offered, 60.0)
    assert task_id in await offered("watch", "")
    assert (await offered("watch", "zzzz")).strip() == ""


async def test_one_task_is_watched_four_ways_at_once(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ways, "LAST_S_MAX", 60.0)  # a webhook's second try comes after 5 s
    marker = tmp_path / "marker"
    task_id = await cli.begun("hold", f"marker={marker}")
    await until_file_says(marker, "started")
    async with ways.watched(cli.url, task_id) as heard:
        with anyio.fail_after(60):
            await heard.all_watch()
        assert (await cli.run("cancel", task_id)).code == 0
        await cli.run("watch", task_id)
    last = {way: max(delays) for way, delays in heard.delays_ms.items()}
    assert set(last) == {"poll", "listen", "websocket", "webhook"}
    assert len(set(last.values())) == 1
    shown = io.StringIO()
    Console(file=shown, width=120).print(heard.table())
    assert "cancelled" in shown.getvalue()
    assert "median" in shown.getvalue()


async def test_tasks_are_a_table_at_a_terminal_and_tabs_in_a_pipe(cli: Cli):
    task_id = await cli.begun("count", "steps=1")
    done = await cli.run("tasks")
    [row] = done.out.splitlines()
    assert row.split("\t")[:3] == [task_id, "count", "unfinished"]
    async with cli.at_terminal("tasks") as terminal:
        await terminal.see("│ count")
        assert await terminal.ended() == 0


async def test_the_journal_is_for_its_owner_alone(cli: Cli, tmp_path: Path):
    await cli.begun("count", "steps=1")
    journal = tmp_path / ".outlast" / "client.db"
    assert journal.stat().st_mode & 0o077 == 0
    with sqlite3.connect(journal) as connection:
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (1,)
    connection.close()


@pytest.mark.parametrize("command", ["call", "watch", "resume", "answer", "cancel", "tasks"])
async def test_the_help_has_examples_and_the_exit_codes(cli: Cli, command: str):
    done = await cli.run(command, "--help")
    assert done.code == 0
    assert f"outlast {command}" in done.out.split("Examples:")[1]
    assert "Exit codes:" in done.out
