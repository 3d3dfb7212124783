"""`/audit` of a real server: for who holds the scope, and the same for nobody else."""

import hashlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psycopg
import pytest

from outlast.domain.owner import Owner
from outlast.tests.acceptance.waiting import until
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.publishing import Publisher, publishing
from outlast.tests.support.serving import OUTLAST, Serving, serving

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
TOKENS = {"audit": "the-auditor's-token-is-long-enough", "call": "the-caller's-token-is-long-too"}
SCOPES = {"audit": '["audit"]', "call": '["call", "watch"]'}


@dataclass
class Pages:
    server: Serving
    publisher: Publisher
    http: httpx2.AsyncClient

    async def get(self, path: str, who: str | None = "audit", **query: Any) -> httpx2.Response:
        headers = {} if who is None else {"Authorization": f"Bearer {TOKENS[who]}"}
        url = f"{self.server.base_url}/audit{path}"
        return await self.http.get(url, params=query or None, headers=headers)

    def does(self, statement: str, *params: Any) -> None:
        with psycopg.connect(self.server.database_url, autocommit=True) as connection:
            connection.execute(statement.encode(), params)

    async def opened(self) -> str:
        """A task of the caller's, in a store where nothing is sealed."""
        owner = Owner("outlast:tokens", "call", "default")
        return await self.publisher.opened(owner=owner.key)


@pytest.fixture(scope="module")
async def pages(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pages]:
    folder: Path = tmp_path_factory.mktemp("pages")
    (folder / "tokens.toml").write_text(
        "".join(
            f'[[tokens]]\nsha256 = "{hashlib.sha256(TOKENS[who].encode()).hexdigest()}"\n'
            f'subject = "{who}"\nscopes = {SCOPES[who]}\n'
            for who in TOKENS
        )
    )
    config = desk_config('tokens_file = "tokens.toml"\naudit_checkpoint_s = 1')
    async with (
        serving(folder, config, module_database_url, ["--no-work"]) as server,
        http_client() as http,
    ):
        with publishing(module_database_url) as publisher:
            yield Pages(server, publisher, http)


async def test_an_auditor_sees_a_task_of_any_owner_and_its_owner_does_not(pages: Pages):
    task_id = await pages.opened()
    reply = await pages.get(f"/tasks/{task_id}")
    assert reply.status_code == httpx2.codes.OK
    assert reply.headers["cache-control"] == "no-store"
    told = reply.json()
    assert [event["type"] for event in told["events"]] == ["task.opened", "task.work_started"]
    assert json.loads(told["owner"])[1] == "call"
    refused = await pages.get(f"/tasks/{task_id}", "call")
    assert refused.status_code == httpx2.codes.FORBIDDEN
    assert "audit" in refused.headers["www-authenticate"]


async def test_who_may_not_ask_cannot_tell_what_there_is(pages: Pages):
    task_id = await pages.opened()
    for who, status in ((None, 401), ("call", 403)):
        paths = (f"/tasks/{task_id}", "/tasks/nobody", "/checkpoint")
        replies = [await pages.get(path, who) for path in paths]
        assert {reply.status_code for reply in replies} == {status}
        assert len({reply.content for reply in replies}) == 1


async def test_the_page_and_the_command_tell_the_same(pages: Pages):
    task_id = await pages.opened()
    await pages.publisher.ends(task_id)
    page = await pages.get(f"/tasks/{task_id}")
    with anyio.fail_after(PATIENCE_S):
        done = await anyio.run_process(
            [str(OUTLAST), "audit", "show", task_id, "--json"],
            cwd=pages.server.log.parent,
            env={**os.environ, "OUTLAST_DATABASE_URL": pages.server.database_url},
        )
    assert done.stdout == page.content + b"\n"


@pytest.mark.promise("replay-is-what-the-client-saw")
async def test_the_state_at_a_version_is_what_its_client_was_given(pages: Pages):
    task_id = await pages.opened()
    client = RawClient(pages.server.url, pages.http, TOKENS["call"])
    answers = {2: (await client.request("tasks/get", {"taskId": task_id})).content}
    for version in (3, 4):
        await pages.publisher.progresses(task_id, f"step {version}")
        answers[version] = (await client.request("tasks/get", {"taskId": task_id})).content
    for version, answer in answers.items():
        state = (await pages.get(f"/tasks/{task_id}", at=version)).content
        assert answer.endswith(b"," + state.removeprefix(b"{") + b"}")


@pytest.mark.parametrize("at", ["0", "-1", "x", "", "1.5", "99999999999", "\uff11"])
async def test_a_version_that_is_no_number_is_refused(pages: Pages, at: str):
    task_id = await pages.opened()
    reply = await pages.get(f"/tasks/{task_id}", at=at)
    assert reply.status_code == httpx2.codes.BAD_REQUEST
    assert "at must be" in reply.json()["error"]


async def test_unknown_tasks_versions_and_parameters_are_told_apart(pages: Pages):
    task_id = await pages.opened()
    for path, status in (
        ("nobody", 404),
        ("%00", 404),
        (f"{task_id}?at=3", 404),
        (f"{task_id}?version=1", 400),
        (f"{task_id}?at=1&at=2", 400),
    ):
        reply = await pages.get(f"/tasks/{path}")
        assert reply.status_code == status, reply.text
        assert set(reply.json()) == {"error"}


async def test_an_erased_task_is_still_told_of_but_no_state_of_it(pages: Pages):
    task_id = await pages.opened()
    await pages.publisher.ends(task_id)
    pages.does("SELECT outlast.forget_tasks(%s)", [task_id])
    pages.does("SELECT outlast.erase_tasks(%s, 'on request')", [task_id])
    told = (await pages.get(f"/tasks/{task_id}")).json()
    assert [event["version"] for event in told["events"]] == [1, 2, 3, 4]
    assert told["events"][1]["absent"] == "erased"
    reply = await pages.get(f"/tasks/{task_id}", at=2)
    assert reply.status_code == httpx2.codes.GONE
    assert "erased" in reply.json()["error"]


async def test_the_newest_checkpoint_is_text_that_verify_takes(pages: Pages, tmp_path: Path):
    await pages.opened()

    async def is_signed() -> bool:
        return (await pages.get("/checkpoint")).status_code == httpx2.codes.OK

    await until(is_signed, PATIENCE_S)
    reply = await pages.get("/checkpoint")
    assert reply.headers["content-type"].startswith("text/plain")
    kept = tmp_path / "kept.txt"
    kept.write_text(reply.text)
    with anyio.fail_after(PATIENCE_S):
        done = await anyio.run_process(
            [str(OUTLAST), "audit", "verify", "--checkpoint", str(kept)],
            check=False,
            cwd=pages.server.log.parent,
            env={**os.environ, "OUTLAST_DATABASE_URL": pages.server.database_url},
        )
    assert done.returncode == 0, done.stdout.decode()
