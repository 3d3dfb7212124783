"""`outlast webhooks` as a process, against a served Outlast and against its store; and its page."""

import json
import os
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from outlast.tests.delivery.webhook_world import SECRET, Hook, hook
from outlast.tests.service.operators_world import ADMIN_TOKEN, Operated, Subscribed, operated
from outlast.tests.support.serving import OUTLAST

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
ADDRESS_IN_TEXT = "http://127.0.0.1:8000"
PAGE = (Path(__file__).parents[2] / "docs" / "operators.md").read_text(encoding="utf-8")
DOORS = ["server", "store"]


@pytest.fixture(scope="module")
async def made(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Operated]:
    folder = tmp_path_factory.mktemp("operated")
    async with operated(folder, module_database_url) as world:
        yield world


@pytest.fixture
async def endpoint() -> AsyncIterator[Hook]:
    async with hook() as served:
        yield served


async def run(made: Operated, door: str, *words: str, **environment: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `outlast webhooks`, by the service or by the store."""
    config = made.server.log.with_suffix(".toml")
    if door == "server":
        flags, own = ["--server", made.server.url], {"OUTLAST_ADMIN_TOKEN": ADMIN_TOKEN}
    else:
        flags = ["--config", str(config), "--database-url", made.server.database_url]
        own = {}
    with anyio.fail_after(PATIENCE_S):
        done = await anyio.run_process(
            [str(OUTLAST), "webhooks", *words, *flags],
            check=False,
            cwd=config.parent,
            env={**os.environ, **own, **environment},
        )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def lines(made: Operated, door: str, *words: str) -> list[dict[str, Any]]:
    code, out, err = await run(made, door, *words, "--json")
    assert (code, err) == (0, ""), err
    return [json.loads(line) for line in out.splitlines()]


async def delivered(made: Operated, endpoint: Hook) -> tuple[Subscribed, str]:
    """A subscription whose one event has arrived, and the task that it was of."""
    ours = await made.subscribed(endpoint)
    task_id = await ours.finished()
    await endpoint.got(1)
    await ours.settled()
    return ours, task_id


@pytest.mark.parametrize("door", DOORS)
async def test_both_doors_tell_what_the_service_tells(made: Operated, endpoint: Hook, door: str):
    ours, task_id = await delivered(made, endpoint)
    told = await made.show(ours.id)
    assert await lines(made, door, "show", ours.id) == [told]
    (row,) = [row for row in await lines(made, door, "list") if row["id"] == ours.id]
    assert row == {name: told[name] for name in row}
    (attempt,) = await lines(made, door, "attempts", ours.id)
    assert (attempt["task"], attempt["event"]) == (task_id, endpoint.events[0].webhook_id)


@pytest.mark.parametrize("door", DOORS)
async def test_what_is_sent_again_by_either_door_is_posted_by_the_service(
    made: Operated, endpoint: Hook, door: str
):
    ours, task_id = await delivered(made, endpoint)
    webhook_id = endpoint.events[0].webhook_id
    ways = (["--since", "1h"], ["--event", webhook_id], ["--task", task_id, "--version", "3"])
    for count, way in enumerate(ways, 2):
        assert await lines(made, door, "resend", ours.id, *way) == [{"queued": 1}]
        await endpoint.got(count)
        await ours.settled()
    assert set(ours.webhook_ids) == {webhook_id}


@pytest.mark.parametrize("door", DOORS)
async def test_a_suspended_subscription_is_listed_and_resumed(
    made: Operated, endpoint: Hook, door: str
):
    ours = await made.subscribed(endpoint)
    endpoint.behaves = lambda _: 410
    missed = {await ours.finished()}
    await made.until_shown(ours.id, active=False)
    missed.add(await ours.finished())
    endpoint.posted.clear()
    endpoint.behaves = lambda _: 204
    suspended = await lines(made, door, "list", "--only", "suspended")
    assert ours.id in [row["id"] for row in suspended]
    code, _, err = await run(made, door, "resend", ours.id, "--since", "1h")
    assert code == 1
    assert "resume it first" in err
    assert (await lines(made, door, "resume", ours.id))[0]["active"] is True
    assert {post.content["data"]["taskId"] for post in await endpoint.got(2)} == missed
    await ours.settled()


@pytest.mark.parametrize("door", DOORS)
async def test_a_test_succeeds_or_fails_as_the_endpoint_does(
    made: Operated, endpoint: Hook, door: str
):
    ours = await made.subscribed(endpoint)
    assert await run(made, door, "test", ours.id) == (0, "ok\n", "")
    endpoint.echoes = False
    assert await run(made, door, "test", ours.id) == (1, "failed: challenge_failed\n", "")
    code, out, _ = await run(made, door, "test", ours.id, "--json")
    assert (code, json.loads(out)["reason"]) == (1, "challenge_failed")


async def test_tables_hold_what_matters_and_no_secret(made: Operated, endpoint: Hook):
    ours, task_id = await delivered(made, endpoint)
    said: list[str] = []
    for words in (["list", "--limit", "1000"], ["show", ours.id], ["attempts", ours.id]):
        code, out, err = await run(made, "server", *words, COLUMNS="250")
        assert (code, err) == (0, "")
        assert (ours.id in out) == (words[0] != "attempts")
        said.append(out)
    assert "outlast:tokens/alice/default" in said[0]
    assert "half_open" not in said[1]
    assert "closed" in said[1]
    assert task_id in said[2]
    assert SECRET.removeprefix("whsec_") not in "".join(said)


async def test_what_is_left_out_of_a_list_is_said(made: Operated, endpoint: Hook):
    for _ in range(2):
        await made.subscribed(endpoint)
    code, out, err = await run(made, "server", "list", "--limit", "1", "--json")
    (row,) = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, f"there are more: --after {row['id']}\n")
    rest = await lines(made, "server", "list", "--limit", "1000", "--after", row["id"])
    assert row["id"] not in [each["id"] for each in rest]
    assert rest


UNKNOWN = "sub_" + "0" * 32


@pytest.mark.parametrize(
    ("door", "words", "code", "said"),
    [
        ("server", ["show", UNKNOWN], 1, "no such webhook subscription"),
        ("store", ["show", UNKNOWN], 1, "no such webhook subscription"),
        ("server", ["show", "../webhooks"], 2, "no id"),
        ("server", ["list", "--only", "broken"], 2, "suspended"),
        ("store", ["resend", UNKNOWN], 2, "give event"),
        ("server", ["resend", UNKNOWN, "--task", "t"], 2, "version"),
        ("server", ["list", "--limit", "0"], 2, "limit"),
        ("server", ["list", "--no-such-option"], 2, "no-such-option"),
    ],
)
async def test_a_refusal_exits_with_one_and_wrong_usage_with_two(
    made: Operated, door: str, words: list[str], code: int, said: str
):
    status, out, err = await run(made, door, *words)
    assert (status, out) == (code, "")
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("flags", "token", "code", "said"),
    [
        (["--server", "{url}"], "", 2, "OUTLAST_ADMIN_TOKEN"),
        (["--server", "{url}"], "sécret-\n-never-shown", 2, "OUTLAST_ADMIN_TOKEN"),
        (["--server", "{url}"], "a-wrong-token-never-shown", 1, "bearer token is required"),
        (["--server", "http://127.0.0.1:1"], ADMIN_TOKEN, 1, "no answer"),
        (["--server", "http://127.0.0.1:x"], ADMIN_TOKEN, 2, "--server"),
        (["--server", "{hook}"], ADMIN_TOKEN, 1, "no Outlast"),
        (["--server", "localhost"], ADMIN_TOKEN, 2, "http(s)"),
        (["--server", "{url}", "--database-url", "x"], ADMIN_TOKEN, 2, "not both"),
        (["--database-url", "postgresql://127.0.0.1:1/none"], "", 1, "store"),
        ([], "", 2, "there is no store"),
    ],
)
async def test_who_cannot_be_asked_is_said_in_a_line(
    made: Operated, tmp_path: Path, flags: list[str], token: str, code: int, said: str
):
    async with hook() as other:
        other.behaves = lambda _: 204
        words = [flag.format(url=made.server.url, hook=other.url) for flag in flags]
        unset = ("OUTLAST_DATABASE_URL", "OUTLAST_ADMIN_TOKEN")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        if token:
            environment["OUTLAST_ADMIN_TOKEN"] = token
        with anyio.fail_after(PATIENCE_S):
            done = await anyio.run_process(
                [str(OUTLAST), "webhooks", "list", *words],
                check=False,
                cwd=tmp_path,
                env=environment,
            )
    err = done.stderr.decode()
    assert (done.returncode, done.stdout) == (code, b"")
    assert said in err
    assert "Traceback" not in err
    assert "never-shown" not in err
    assert not list(tmp_path.iterdir())


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[str]:
    """The commands of a block, each with its continued lines."""
    joined = re.sub(r"\\\n\s*", " ", block)
    return [line for line in joined.splitlines() if line]


@pytest.mark.promise("readme-commands-run")
async def test_every_command_of_the_operators_page_runs_as_it_stands_there(
    made: Operated, endpoint: Hook
):
    ours, task_id = await delivered(made, endpoint)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(OUTLAST.parent), os.environ["PATH"]]),
        "OUTLAST_ADMIN_TOKEN": ADMIN_TOKEN,
        "SUBSCRIPTION": ours.id,
        "EVENT": endpoint.events[0].webhook_id,
        "TASK": task_id,
        "VERSION": "3",
    }
    first, *others = blocks()
    making = await anyio.run_process(["sh", "-c", first + 'printf %s "$OUTLAST_ADMIN_TOKEN"'])
    assert re.fullmatch(rb"[\w-]{32,}", making.stdout)
    for command in [command for block in others for command in commands(block)]:
        words = command.replace(ADDRESS_IN_TEXT, made.server.base_url)
        done = await anyio.run_process(["sh", "-c", words], env=environment, check=False)
        assert (done.returncode, done.stderr) == (0, b""), (command, done.stderr)
        if command.startswith("curl"):
            assert json.loads(done.stdout)
        await ours.settled()
    # Once, and again by each of three ways, by either door.
    assert set(ours.webhook_ids) == {environment["EVENT"]}
    assert len(endpoint.events) == 1 + 2 * 3


def test_the_operators_page_has_a_command_and_a_request_for_each_deed():
    tried = [command for block in blocks()[1:] for command in commands(block)]
    deeds = ("list", "show", "attempts", "test", "resend", "resume")
    assert all(command.startswith(("outlast webhooks ", "curl ")) for command in tried)
    assert {command.split()[2] for command in tried if command.startswith("outlast")} == set(deeds)
    asked = [command for command in tried if command.startswith("curl")]
    for end in ("webhooks?", '$SUBSCRIPTION"', "/attempts?", "/test", "/resend", "/resume"):
        assert any(end in command for command in asked), end


def test_each_command_shows_an_example_in_its_help():
    for deed in ("list", "show", "attempts", "resend", "resume", "test"):
        done = subprocess.run(
            [str(OUTLAST), "webhooks", deed, "--help"], capture_output=True, text=True, check=True
        )
        assert f"Example: outlast webhooks {deed}" in done.stdout
