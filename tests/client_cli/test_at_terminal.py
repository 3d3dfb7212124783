"""What a person sees and types: progress, forms, URLs, Ctrl-C, and nothing that a server forges."""

import json
import re
from pathlib import Path

import pytest

from outlast.tests.acceptance.waiting import until_file_says
from outlast.tests.client_cli.conftest import Cli
from outlast.tests.client_cli.terminal import CTRL_C, CTRL_D, OURS

pytestmark = pytest.mark.anyio


async def test_a_task_is_watched_with_a_bar_and_its_result_stands_at_the_end(
    cli: Cli, tmp_path: Path
):
    gate = tmp_path / "gate"
    async with cli.at_terminal("call", "count", "steps=8", f"gate={gate}") as terminal:
        await terminal.see("task ")
        await terminal.see("count ━")
        await terminal.see("working: 4 of 8")
        gate.touch()
        await terminal.see("completed")
        await terminal.see("counted 8")
        assert await terminal.ended() == 0
    assert re.search(r"━╺━* working: [1-9] of 8", terminal.shown)
    assert "\x1b[?25h" in terminal.raw  # the cursor is back


async def test_a_form_is_filled_in_field_by_field_with_its_rules_and_proposals(cli: Cli):
    async with cli.at_terminal("call", "order") as terminal:
        await terminal.see("What may it be?")
        await terminal.see(f"asked by {cli.url}")
        await terminal.see("/decline says no")
        await terminal.see("Your name [text, at least 2 characters]:")
        terminal.enter("A")
        await terminal.see("give at least 2 characters")
        terminal.enter("Ada")
        await terminal.see("mail [email] (optional):")
        terminal.enter("ada")
        await terminal.see("give an e-mail address")
        terminal.enter("")
        await terminal.see("count [integer, 1 to 9] (3):")
        terminal.enter("12")
        await terminal.see("give at most 9")
        terminal.enter("")
        await terminal.see("By tomorrow?")
        await terminal.see("express [yes or no] (no; - for none):")
        terminal.enter("yes")
        await terminal.see("2) Large")
        await terminal.see("size [a number or a name]:")
        terminal.enter("")
        await terminal.see("this one is needed")
        terminal.enter("2")
        await terminal.see("extras [numbers or names, with commas] (optional):")
        terminal.enter("nuts, salt, milk")
        await terminal.see("give at most 2 choices")
        terminal.enter("1,salt")
        await terminal.see("note [text] (optional):")
        terminal.enter("")
        await terminal.see("extras: [")
        await terminal.see("Send this? [yes/edit/decline] (yes)")
        terminal.enter("")
        await terminal.see("completed")
        assert await terminal.ended() == 0
    answer = json.loads(terminal.shown.strip().splitlines()[-1])
    content = {"name": "Ada", "count": 3, "express": True, "size": "l", "extras": ["nuts", "salt"]}
    assert answer == {"action": "accept", "content": content}


async def test_edited_answers_are_proposed_again_before_they_are_sent(cli: Cli):
    async with cli.at_terminal("call", "order") as terminal:
        for words in ("Ada", "", "5", "", "Small", "", ""):
            await terminal.see("]")
            terminal.enter(words)
        await terminal.see("Send this?")
        terminal.enter("edit")
        await terminal.see("Your name [text, at least 2 characters] (Ada):")
        terminal.enter("Eve")
        for _ in range(6):
            await terminal.see(":")
            terminal.enter("")
        await terminal.see("name: Eve")
        await terminal.see("Send this?")
        terminal.enter("y")
        assert await terminal.ended() == 0
    content = json.loads(terminal.shown.strip().splitlines()[-1])["content"]
    assert content == {"name": "Eve", "count": 5, "express": False, "size": "s"}


@pytest.mark.parametrize(
    ("keys", "action"), [("/decline\n", "decline"), ("/dismiss\n", "cancel"), (CTRL_D, "cancel")]
)
async def test_a_form_is_declined_or_dismissed_at_any_field(cli: Cli, keys: str, action: str):
    async with cli.at_terminal("call", "order") as terminal:
        await terminal.see("Your name")
        await terminal.see(":")
        terminal.type(keys)
        await terminal.see(f'{{"action": "{action}"}}')
        assert await terminal.ended() == 0


async def test_a_plain_call_that_asks_is_answered_at_the_terminal_too(cli: Cli):
    async with cli.at_terminal("call", "order_plain") as terminal:
        await terminal.see("Your name")
        await terminal.see(":")
        terminal.enter("/decline")
        await terminal.see('{"action": "decline"}')
        assert await terminal.ended() == 0


async def test_a_url_is_shown_whole_and_waits_for_consent(cli: Cli):
    async with cli.at_terminal("call", "visit") as terminal:
        await terminal.see("Please pay.")
        await terminal.see("https://pages.example/pay?order=7")
        await terminal.see("Done, or agreed? [yes/decline/later] (yes)")
        terminal.enter("yes")
        await terminal.see('{"action": "accept"}')
        assert await terminal.ended() == 0


async def test_ctrl_c_asks_and_leaves_the_task_running(cli: Cli, tmp_path: Path):
    marker = tmp_path / "marker"
    async with cli.at_terminal("call", "hold", f"marker={marker}") as terminal:
        await until_file_says(marker, "started")
        await terminal.see("working: holding")
        terminal.type(CTRL_C)
        await terminal.see("Cancel the task, leave it running, or watch on?")
        terminal.enter("leave")
        await terminal.see("left running; go on with: outlast watch ")
        assert await terminal.ended() == 4
    assert marker.read_text() == "started"
    [task_id] = [row["taskId"] for row in (await cli.run("tasks", "--json")).told]
    assert (await cli.run("cancel", task_id)).code == 0
    await until_file_says(marker, "stopped")


async def test_ctrl_c_asks_and_cancels_the_task(cli: Cli, tmp_path: Path):
    marker = tmp_path / "marker"
    async with cli.at_terminal("call", "hold", f"marker={marker}") as terminal:
        await terminal.see("working: holding")  # before, Ctrl-C breaks off the call itself
        terminal.type(CTRL_C)
        await terminal.see("[cancel/leave/watch] (leave)")
        terminal.enter("cancel")
        await terminal.see("task: cancelled")
        assert await terminal.ended() == 3
    await until_file_says(marker, "stopped")


async def test_a_second_ctrl_c_leaves_and_watch_on_goes_on(cli: Cli, tmp_path: Path):
    marker = tmp_path / "marker"
    async with cli.at_terminal("call", "hold", f"marker={marker}") as terminal:
        await terminal.see("working: holding")  # before, Ctrl-C breaks off the call itself
        terminal.type(CTRL_C)
        await terminal.see("(leave)")
        terminal.enter("watch")
        await terminal.see("working: holding")
        terminal.type(CTRL_C)
        await terminal.see("(leave)")
        terminal.type(CTRL_C)
        await terminal.see("left running")
        assert await terminal.ended() == 4


async def test_a_question_that_another_process_answers_is_taken_away(cli: Cli):
    async with cli.at_terminal("call", "order") as terminal:
        await terminal.see("Your name")
        [row] = (await cli.run("tasks", "--unfinished", "--json")).told
        done = await cli.run("answer", row["taskId"], "name=Bob", "size=l")
        assert done.code == 0, done.err
        await terminal.see("that question is no longer asked")
        await terminal.see('"name": "Bob"')
        assert await terminal.ended() == 0


@pytest.mark.promise("servers-cannot-control-the-terminal")
async def test_nothing_that_a_server_says_reaches_the_terminal_as_a_command(cli: Cli):
    async with cli.at_terminal("call", "hostile") as terminal:
        await terminal.see("evil question")
        await terminal.see("evil title")
        terminal.enter("x")
        await terminal.see("evil result")
        assert await terminal.ended() == 0
    left = OURS.sub("", terminal.raw)
    assert "\x1b" not in left
    assert "\x07" not in left
    assert "\x08" not in left
    assert "owned" not in terminal.raw
    assert "\x1b[2J" not in terminal.raw
    assert "\x1b[31mevil" not in terminal.raw


async def test_a_question_is_answered_at_the_terminal_for_a_task_that_is_left(cli: Cli):
    task_id = await cli.begun("visit")
    assert (await cli.run("watch", task_id)).code == 5
    async with cli.at_terminal("answer", task_id) as terminal:
        await terminal.see("Please pay.")
        await terminal.see("(yes)")
        terminal.enter("decline")
        await terminal.see("answered in-1")
        assert await terminal.ended() == 0
    assert json.loads((await cli.run("watch", task_id)).out) == {"action": "decline"}


async def test_several_tasks_that_ask_are_asked_about_one_after_another(cli: Cli):
    first, second = await cli.begun("order"), await cli.begun("order")
    async with cli.at_terminal("resume") as terminal:
        for _ in range(2):
            await terminal.see("Your name")
            await terminal.see(":")
            terminal.enter("/decline")
        assert await terminal.ended() == 0
    for task_id in (first, second):
        assert f"task {task_id}: completed" in terminal.shown
    assert terminal.shown.count('{"action": "decline"}') == 2


async def test_ctrl_c_at_a_form_asks_and_leaves_it_unanswered(cli: Cli):
    async with cli.at_terminal("call", "order") as terminal:
        await terminal.see("Your name")
        terminal.type(CTRL_C)
        await terminal.see("Cancel the task, leave it running, or watch on?")
        terminal.enter()
        await terminal.see("left running")
        assert await terminal.ended() == 4
    [row] = (await cli.run("tasks", "--unfinished", "--json")).told
    assert row["answered"] == []
    assert (await cli.run("cancel", row["taskId"])).code == 0
