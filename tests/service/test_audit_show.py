"""`outlast audit show`, `replay` and `export` against what clients of a real server were told."""

import json
import os
import re
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.formats.json import JSONFormat

from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.postgres import Database
from outlast.domain.owner import LOCAL_OWNER, Owner
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.mcp import TERMINAL, RawClient, http_client
from outlast.tests.support.publishing import Publisher
from outlast.tests.support.sealed import OLD, sealer
from outlast.tests.support.serving import OUTLAST, Serving, serving

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
SECRET = "the-marked-payload"
ESCAPES = "\x1b]0;owned\x07\x1b[31mred\u202e"
EXTENSION = re.compile(r"[a-z0-9]{1,20}")
STANDARD = {"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "data"}


@dataclass
class Audited:
    """A server that runs no tasks, who moves them, a client, and the auditor's commands."""

    server: Serving
    publisher: Publisher
    client: RawClient
    folder: Path

    async def command(self, *words: str) -> tuple[int, bytes, str]:
        """Exit code, output and errors of `outlast audit`."""
        config = self.server.log.with_suffix(".toml")
        flags = ["--config", str(config), "--database-url", self.server.database_url]
        with anyio.fail_after(PATIENCE_S):
            done = await anyio.run_process(
                [str(OUTLAST), "audit", *words, *flags],
                check=False,
                cwd=self.folder,
                env={**os.environ, "COLUMNS": "220"},
            )
        return done.returncode, done.stdout, done.stderr.decode()

    async def told(self, *words: str) -> bytes:
        code, out, err = await self.command(*words)
        assert (code, err) == (0, ""), err
        return out

    async def events(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (await self.told("export", *words)).splitlines()]

    async def answer(self, task_id: str) -> bytes:
        """The bytes of a tasks/get, from its JSON-RPC envelope on."""
        return (await self.client.request("tasks/get", {"taskId": task_id})).content

    def does(self, statement: str, *params: Any) -> Sequence[tuple[Any, ...]]:
        with psycopg.connect(self.server.database_url, autocommit=True) as connection:
            return connection.execute(statement.encode(), params).fetchall()

    def erase(self, task_id: str) -> None:
        self.does("SELECT outlast.forget_tasks(%s)", [task_id])
        self.does("SELECT outlast.erase_tasks(%s, 'on request')", [task_id])


@asynccontextmanager
async def audited(folder: Path, url: str, *, seals: bool) -> AsyncIterator[Audited]:
    store = Database(url)
    await store.open()
    log = PostgresEventLog(store, sealer=sealer(store) if seals else None)
    config = desk_config(f'data_keys = ["{OLD}"]' if seals else "")
    try:
        async with serving(folder, config, url, ["--no-work"]) as server, http_client() as http:
            yield Audited(server, Publisher(log), RawClient(server.url, http), folder)
    finally:
        log.close()
        await store.close()


@pytest.fixture(scope="module")
async def made(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Audited]:
    """A sealed store: what is opened here is read as it is where nothing is sealed."""
    folder = tmp_path_factory.mktemp("audited")
    async with audited(folder, module_database_url, seals=True) as world:
        yield world


async def lived(made: Audited) -> tuple[str, list[bytes]]:
    """A task that lived through something, and what its client was told at each version from 2."""
    publisher, answers = made.publisher, list[bytes]()
    task_id = await publisher.opened(arguments={"secret": SECRET, "big": 2**70})
    answers.append(await made.answer(task_id))
    for step, message in enumerate(["one", ESCAPES, "\ud800 lone", None]):
        await publisher.progresses(task_id, message, step)
        answers.append(await made.answer(task_id))
    await publisher.asks(task_id)
    answers.append(await made.answer(task_id))
    await publisher.ends(task_id, {"content": [], "structuredContent": {"n": 2**80, "f": 1.50}})
    answers.append(await made.answer(task_id))
    return task_id, answers


@pytest.mark.promise("replay-is-what-the-client-saw")
async def test_a_replay_is_byte_for_byte_what_tasks_get_answered(made: Audited):
    task_id, answers = await lived(made)
    states = (await made.told("replay", task_id)).splitlines()
    assert len(states) == len(answers) + 1
    for version, (state, answer) in enumerate(zip(states[1:], answers, strict=True), 2):
        assert answer.endswith(b"," + state.removeprefix(b"{") + b"}")
        if version in {2, len(states)}:
            assert await made.told("replay", task_id, "--at", str(version)) == state + b"\n"
    opened = json.loads(states[0])
    assert (opened["taskId"], opened["status"]) == (task_id, "working")


@pytest.mark.promise("replay-is-what-the-client-saw")
async def test_all_that_a_client_saw_of_a_real_run_is_in_its_replay(
    database_url: str, tmp_path: Path
):
    async with (
        serving(tmp_path, desk_config(f'data_keys = ["{OLD}"]'), database_url) as server,
        http_client() as http,
    ):
        client = RawClient(server.url, http)
        task_id = await client.opened("sign_task_during", {"document": SECRET})
        seen: list[dict[str, Any]] = []
        with anyio.fail_after(PATIENCE_S):
            while not seen or seen[-1]["status"] not in TERMINAL:
                told = await client.task(task_id)
                seen += [told] if not seen or told != seen[-1] else []
                if told["status"] == "input_required":
                    answer = {"action": "accept", "content": {"name": "Ada"}}
                    replies = dict.fromkeys(told["inputRequests"], answer)
                    params = {"taskId": task_id, "inputResponses": replies}
                    await client.request("tasks/update", params)
        audited = Audited(server, Publisher.__new__(Publisher), client, tmp_path)
        lines = (await audited.told("replay", task_id)).splitlines()
    for told in seen:
        for extra in ("resultType", "_meta"):
            told.pop(extra, None)
    replayed = iter(json.loads(line) for line in lines)
    assert all(told in replayed for told in seen)
    assert json.loads(lines[-1]) == seen[-1]


async def test_the_timeline_says_who_when_and_how_long_and_obeys_no_payload(made: Audited):
    task_id, _ = await lived(made)
    text = (await made.told("show", task_id)).decode()
    assert "\x1b" not in text
    assert "\u202e" not in text
    for words in (task_id, "attempt 1 began", "tests", "progress 1: ", "asked the client: in-1"):
        assert words in text
    assert re.search(r"waiting for a worker .*, working .*, waiting for input ", text)
    assert LOCAL_OWNER.key in text
    assert re.search(r"^ +8 .*completed", text, re.MULTILINE)


async def test_payloads_are_shortened_unless_all_is_wanted(made: Audited):
    task_id = await made.publisher.opened(arguments={"long": "x" * 500 + SECRET})
    assert SECRET not in (await made.told("show", task_id)).decode()
    full = re.sub(r"\s+", "", (await made.told("show", task_id, "--full")).decode())
    assert SECRET in full


async def test_the_json_of_a_history_has_all_of_it(made: Audited):
    task_id, _ = await lived(made)
    told = json.loads(await made.told("show", task_id, "--json"))
    first = told["events"][0]
    assert first["payload"]["arguments"] == {"secret": SECRET, "big": 2**70}
    assert [event["version"] for event in told["events"]] == list(range(1, 9))
    assert {event["worker"] for event in told["events"][1:]} == {"tests"}
    assert set(told["totals"]) == {"waitingMs", "workingMs", "askingMs"}
    assert (told["owner"], told["status"], told["isPast"]) == (LOCAL_OWNER.key, "completed", False)


async def test_a_past_task_is_told_whole_and_an_erased_one_without_payloads(made: Audited):
    task_id, _ = await lived(made)
    whole = json.loads(await made.told("show", task_id, "--json"))
    made.does("SELECT outlast.forget_tasks(%s)", [task_id])
    past = json.loads(await made.told("show", task_id, "--json"))
    assert past == {**whole, "isPast": True}
    assert len((await made.told("replay", task_id)).splitlines()) == 8
    made.erase(task_id)
    gone = json.loads(await made.told("show", task_id, "--json"))
    assert SECRET not in json.dumps(gone)
    assert gone["isErased"]
    assert (gone["owner"], gone["ownerHash"]) == (None, whole["ownerHash"])
    assert [event["type"] for event in gone["events"][:-1]] == [
        event["type"] for event in whole["events"]
    ]
    assert {event.get("absent") for event in gone["events"][:-1]} == {"erased"}
    assert gone["events"][-1]["payload"]["why"] == "on request"
    text = (await made.told("show", task_id)).decode()
    assert "all payloads were erased: on request" in text
    code, out, err = await made.command("replay", task_id, "--at", "3")
    assert (code, out) == (1, b"")
    assert "erased" in err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "-dashed"], 1, "No event of such a task"),
        (["show", "no\udcfftext"], 1, "No event of such a task"),
        (["replay", "{task}", "--at", "0"], 1, "versions 1 to 2"),
        (["replay", "{task}", "--at", "3"], 1, "versions 1 to 2"),
        (["export", "--since", "yesterday"], 2, "--since"),
        (["export", "--since", "2026-07-28T12:00:00"], 2, "zone"),
        (["export", "--until", "-1"], 2, "--until"),
        (["export", "--owner", "ada"], 2, "--owner"),
    ],
)
async def test_what_cannot_be_told_is_a_line_and_an_exit_code(
    made: Audited, words: Sequence[str], code: int, said: str
):
    task_id = await made.publisher.opened()
    given = [word.format(task=task_id) for word in words]
    status, out, err = await made.command(*given)
    assert (status, out) == (code, b"")
    assert said in err
    assert "Traceback" not in err


def parsed(event: Mapping[str, Any]) -> BaseCloudEvent:
    """By the library, which refuses what is no CloudEvent."""
    found = JSONFormat().read(None, json.dumps(event).encode())
    assert found.get_specversion() == "1.0"
    return found


@pytest.mark.promise("export-is-cloudevents")
async def test_every_line_of_an_export_is_a_cloudevent(made: Audited):
    task_id, _ = await lived(made)
    erased, _ = await lived(made)
    made.erase(erased)
    events = await made.events()
    ((epoch,),) = made.does("SELECT epoch FROM outlast.log_epoch")
    for event in events:
        found = parsed(event)
        assert found.get_source() == f"/outlast/{epoch}"
        assert found.get_type().startswith("dev.outlast.task.")
        assert all(EXTENSION.fullmatch(name) for name in set(event) - STANDARD)
        assert ("data" in event) == ("absent" not in event) == ("datacontenttype" in event)
    assert len({event["id"] for event in events}) == len(events)
    positions = [int(event["position"]) for event in events]
    assert positions == sorted(set(positions))
    (opened, *_) = [event for event in events if event["subject"] == task_id]
    assert opened["data"]["arguments"] == {"secret": SECRET, "big": 2**70}
    assert (opened["type"], opened["taskversion"]) == ("dev.outlast.task.opened", 1)
    theirs = [event for event in events if event["subject"] == erased]
    assert [event.get("absent") for event in theirs] == ["erased"] * 8 + [None]
    assert theirs[-1]["data"]["why"] == "on request"


@pytest.mark.promise("export-is-cloudevents")
async def test_an_export_goes_on_behind_its_last_position(made: Audited):
    await lived(made)
    everything = await made.events()
    for place in (0, len(everything) - 2):
        position = everything[place]["position"]
        assert await made.events("--since", position) == everything[place + 1 :]
        assert await made.events("--until", position) == everything[: place + 1]
    assert await made.events("--since", everything[-1]["position"]) == []


async def test_an_export_begins_and_ends_at_instants(made: Audited):
    await lived(made)
    everything = await made.events()
    middle = everything[len(everything) // 2]["time"]
    assert await made.events("--since", middle) == [
        event for event in everything if event["time"] >= middle
    ]
    assert await made.events("--until", middle) == [
        event for event in everything if event["time"] <= middle
    ]
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert await made.events("--since", later) == []


async def test_an_export_of_one_owner_has_the_erasures_of_their_tasks_and_nobody_elses(
    made: Audited,
):
    ada = Owner("https://issuer", "ada", "cli")
    task_id = await made.publisher.opened(owner=ada.key)
    await made.publisher.ends(task_id)
    other = await made.publisher.opened()
    made.erase(task_id)
    made.erase(other)
    events = await made.events("--owner", ada.key)
    assert [event["type"].removeprefix("dev.outlast.task.") for event in events] == [
        "opened",
        "work_started",
        "completed",
        "erased",
    ]
    assert {event["subject"] for event in events} == {task_id}
    assert await made.events("--owner", events[0]["ownerhash"]) == events


async def test_a_payload_that_cannot_be_opened_is_said_and_the_others_are_exported(
    database_url: str, tmp_path: Path
):
    async with audited(tmp_path, database_url, seals=True) as made:
        task_id = await made.publisher.opened()
        made.does(
            "UPDATE outlast.task_events SET state = set_byte(state, 30, get_byte(state, 30) # 1)"
            " WHERE originator_id = %s AND originator_version = 2 RETURNING 1",
            task_id,
        )
        code, out, err = await made.command("export")
        first, second = [json.loads(line) for line in out.splitlines()]
        assert (code, "absent" in first) == (1, False)
        assert second["absent"].startswith("unreadable: it was changed")
        assert "1 payloads cannot be read" in err
        assert "unreadable" in (await made.told("show", task_id)).decode()


async def test_whoever_closes_the_pipe_hears_no_complaint(made: Audited):
    for _ in range(30):
        await made.publisher.opened(arguments={"long": "x" * 8_000})
    config = made.server.log.with_suffix(".toml")
    command = f"{shlex.quote(str(OUTLAST))} audit export --config {config} | head -c 100"
    with anyio.fail_after(PATIENCE_S):
        done = await anyio.run_process(
            ["sh", "-c", command],
            cwd=made.folder,
            env={**os.environ, "OUTLAST_DATABASE_URL": made.server.database_url},
        )
    assert (len(done.stdout), done.stderr) == (100, b"")
