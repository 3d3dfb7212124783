"""One owner at its limits: it is told which, by name, and nobody else is slower for it."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import websockets
from websockets.http11 import Response

from outlast.tests.acceptance.waiting import until, until_file_says
from outlast.tests.service.conftest import DESK, status_stored, tasks_stored
from outlast.tests.support.databases import database
from outlast.tests.support.mcp import (
    IDEMPOTENCY_KEY,
    TERMINAL,
    RawClient,
    Reply,
    envelope,
    headers_of,
    http_client,
)
from outlast.tests.support.serving import Serving, command_of, serving

pytestmark = [pytest.mark.anyio, pytest.mark.promise("limits-have-names")]

BOUND_S = 20.0
SLOTS = 2
TASKS = 24  # that one owner may have
FLOOD_S = 2.0  # of each of a flood: opening them all must not take until most of them have run
EARLY = 3 * SLOTS  # so many of others may begin before one that does not wait for a whole flood
CALLS = 60
POLLS = 200
OWNERS = ("flood", "other", "caller", "poller", "auto", "signer", "keyed", "holder", "socket")
COUNTED = 'outlast_refusals_total{limit="tasks_per_owner"}'
ANSWER = {"__main__:who": {"action": "accept", "content": {"name": "Ada"}}}


def config(more: str) -> str:
    return f"""
        [server]
        tokens_file = "tokens.toml"
        slots = {SLOTS}
        [upstreams.desk]
        command = {command_of(DESK)}
        [defaults]
        run = "task"
        poll_interval = "10s"
        [tools.note_auto]
        run = "auto"
        grace = "100ms"
        [tools.sign_auto_during]
        run = "auto"
        [quotas]
        tasks_per_owner = {TASKS}
        polls_per_minute = {POLLS}
        {more}
    """


def tokens() -> str:
    return "\n".join(
        f'[[tokens]]\nsha256 = "{hashlib.sha256(token(owner).encode()).hexdigest()}"\n'
        f'subject = "{owner}"\nscopes = ["call", "watch", "operate"]\n'
        for owner in OWNERS
    )


def token(owner: str) -> str:
    return f"{owner}-token-that-nobody-guesses"


def served(folder: Path, url: str, more: str = "") -> AbstractAsyncContextManager[Serving]:
    (folder / "tokens.toml").write_text(tokens())
    return serving(folder, config(more), url)


@pytest.fixture(scope="module")
async def server(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    async with served(tmp_path_factory.mktemp("fair"), module_database_url) as server:
        yield server


@pytest.fixture(scope="module")
async def strict(
    postgres_url: str, template_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """Another one on its own database, with few calls a minute, and a share of those that run."""
    more = f"calls_per_minute = {CALLS}\nrunning_per_owner = 1"
    with database(postgres_url, template=template_url) as url:
        async with served(tmp_path_factory.mktemp("strict"), url, more) as server:
            yield server


class Speaker:
    """Speaks as any of the owners."""

    def __init__(self, server: Serving) -> None:
        self.server, self.http = server, http_client()

    def __getitem__(self, owner: str) -> RawClient:
        return RawClient(self.server.url, self.http, token(owner))


@pytest.fixture
async def by(server: Serving) -> AsyncIterator[Speaker]:
    speaker = Speaker(server)
    async with speaker.http:
        yield speaker


@pytest.fixture
async def strictly(strict: Serving) -> AsyncIterator[Speaker]:
    speaker = Speaker(strict)
    async with speaker.http:
        yield speaker


def lines(notes: Path) -> list[str]:
    return notes.read_text().splitlines() if notes.exists() else []


async def fill(client: RawClient, notes: Path, seconds: float = 0.0) -> Reply:
    """Open tasks until one is refused; the refusal."""
    for number in range(TASKS + 1):
        arguments = {"path": str(notes), "text": f"flood {number}", "seconds": seconds}
        reply = await client.call("note_task", arguments)
        if "error" in reply.body:
            return reply
    raise AssertionError("nothing was refused")


async def ended(speaker: Speaker, owner: str, task_id: str) -> dict[str, Any]:
    """The task once it has ended. Until then the store is asked: each poll of ours is counted."""

    async def has_ended() -> bool:
        return status_stored(speaker.server.database_url, task_id) in TERMINAL

    await until(has_ended, BOUND_S)
    return await speaker[owner].task(task_id)


# --- the share of one owner


@pytest.mark.promise("owners-do-not-slow-each-other")
@pytest.mark.promise("quotas-are-exact")
async def test_a_task_does_not_wait_behind_a_flood_whose_owner_is_told_its_quota(
    by: Speaker, tmp_path: Path
):
    notes, before = tmp_path / "notes", tasks_stored(by.server.database_url)
    refused = await fill(by["flood"], notes, seconds=FLOOD_S)
    assert refused.status == 200
    assert refused.error == {
        "code": -32603,
        "message": f"The quota tasks_per_owner is reached: {TASKS}",
        "data": {"reason": "quota_exceeded", "limit": "tasks_per_owner", "most": TASKS},
    }
    task_id = await by["other"].opened("note_task", {"path": str(notes), "text": "other"})
    begun = len(lines(notes))

    async def has_run() -> bool:
        return "'other'" in lines(notes)

    await until(has_run, BOUND_S)
    # By the order of what was begun, not by the clock: most of the flood still waits.
    assert lines(notes).index("'other'") <= begun + EARLY < TASKS
    assert (await ended(by, "other", task_id))["status"] == "completed"
    assert f"'flood {TASKS}'" not in lines(notes)
    assert tasks_stored(by.server.database_url) == before + TASKS + 1


@pytest.mark.promise("owners-do-not-slow-each-other")
async def test_who_may_run_one_at_once_leaves_a_slot_for_the_others(
    strictly: Speaker, tmp_path: Path
):
    """Both slots would be taken for ever: what is held never ends by itself."""
    ids = [
        await strictly["holder"].opened("hold_task", {"marker": str(tmp_path / f"{number}")})
        for number in range(SLOTS + 1)
    ]
    await until_file_says(tmp_path / "0", "started", BOUND_S)
    task_id = await strictly["other"].opened("note_task", {"path": str(tmp_path / "notes")})
    assert (await ended(strictly, "other", task_id))["status"] == "completed"
    assert not (tmp_path / "1").exists()
    await strictly["holder"].request("tasks/cancel", {"taskId": ids[0]})
    await until_file_says(tmp_path / "1", "started", BOUND_S)
    for task_id in ids[1:]:
        await strictly["holder"].request("tasks/cancel", {"taskId": task_id})


# --- what has begun, and what was opened before


async def at_the_quota(client: RawClient, notes: Path) -> None:
    await fill(client, notes.with_name("full"))


async def test_a_call_that_outlives_its_grace_at_the_quota_is_answered_on_the_request(
    by: Speaker, tmp_path: Path
):
    notes, client = tmp_path / "notes", by["auto"]
    await at_the_quota(client, notes)
    before = tasks_stored(by.server.database_url)
    reply = await client.call("note_auto", {"path": str(notes), "text": "once", "seconds": 1.0})
    assert reply.result["resultType"] == "complete"
    assert reply.result["content"][0]["text"] == "1"
    assert lines(notes) == ["'once'"]
    assert tasks_stored(by.server.database_url) == before


async def test_a_call_that_asks_at_the_quota_asks_on_the_request(by: Speaker, tmp_path: Path):
    client = by["signer"]
    await at_the_quota(client, tmp_path / "notes")
    asked = (await client.call("sign_auto_during", {"document": "d"})).result
    assert asked["resultType"] == "input_required"
    state = asked["requestState"]
    answered = await client.call(
        "sign_auto_during", {"document": "d"}, inputResponses=ANSWER, requestState=state
    )
    assert answered.result["content"][0]["text"] == "d signed by Ada"


@pytest.mark.promise("quotas-are-exact")
async def test_a_keyed_call_is_found_again_at_the_quota_and_a_new_one_does_not_run(
    by: Speaker, tmp_path: Path
):
    notes, client = tmp_path / "notes", by["keyed"]
    arguments, meta = {"path": str(notes)}, {IDEMPOTENCY_KEY: "known"}
    first = (await client.call("note_auto", arguments, meta=meta)).result
    await at_the_quota(client, notes)
    again = (await client.call("note_auto", arguments, meta=meta)).result
    assert again["taskId"] == first["taskId"]
    other = await client.call("note_auto", arguments, meta={IDEMPOTENCY_KEY: "new"})
    assert other.error["data"]["limit"] == "tasks_per_owner"
    await ended(by, "keyed", first["taskId"])
    assert len(lines(notes)) == 1


# --- rates


async def until_refused(client: RawClient, method: str, most: int, **params: str) -> Reply:
    for _ in range(3 * most):
        reply = await client.send({**envelope(method, params), "id": "seven"})
        if reply.status == 429:
            return reply
    raise AssertionError("nothing was refused")


def told(reply: Reply, limit: str, most: int) -> None:
    """The refusal says which limit it is, and when to come back, to whoever reads what."""
    assert (reply.status, reply.body["id"], reply.error["code"]) == (429, "seven", -32603)
    data = dict(reply.error["data"])
    wait_ms = data.pop("retryAfterMs")
    assert data == {"reason": "too_many_requests", "limit": limit, "most": most}
    assert f"The limit {limit} is reached: {most}; wait " in reply.error["message"]
    assert 0 < wait_ms <= 60_000
    assert int(reply.headers["retry-after"]) == -(-wait_ms // 1000)


@pytest.mark.promise("owners-do-not-slow-each-other")
async def test_who_calls_too_often_is_told_when_to_come_back_and_others_are_served(
    strictly: Speaker,
):
    caller = strictly["caller"]
    told(await until_refused(caller, "tools/list", CALLS), "calls_per_minute", CALLS)
    assert (await strictly["keyed"].request("tools/list")).status == 200
    headers = headers_of(envelope("tools/list"))
    refused = await caller.post(b"x" * 100_000, headers)
    for _ in range(CALLS):
        if refused.status == 429:
            break
        refused = await caller.post(b"x" * 100_000, headers)  # the bucket has filled meanwhile
    assert (refused.status, "id" in refused.body) == (429, False)


async def test_a_call_that_comes_too_soon_runs_nothing(strictly: Speaker, tmp_path: Path):
    caller, notes = strictly["caller"], tmp_path / "notes"
    await until_refused(caller, "tools/list", CALLS)
    replies = await asyncio.gather(
        *(caller.call("note_task", {"path": str(notes)}) for _ in range(10))
    )
    accepted = sum(reply.status != 429 for reply in replies)  # the bucket fills meanwhile
    assert accepted < 10

    async def have_run() -> bool:
        return len(lines(notes)) == accepted

    await until(have_run, BOUND_S)


async def test_the_socket_is_under_the_same_rate(strictly: Speaker, strict: Serving):
    url = strict.base_url.replace("http", "ws") + "/ws"
    headers = {"Authorization": f"Bearer {token('socket')}"}
    async with websockets.connect(url, additional_headers=headers, proxy=None) as socket:
        await until_refused(strictly["socket"], "tools/list", CALLS)
        request = {**envelope("subscriptions/listen", {"notifications": {}}), "id": 8}
        for _ in range(CALLS):
            await socket.send(json.dumps(request))
            answer = json.loads(await socket.recv())
            if answer.get("error", {}).get("data", {}).get("limit") == "calls_per_minute":
                break
        else:
            pytest.fail("nothing was refused")
        assert answer["id"] == 8
    response = await refused_handshake(url, headers)
    assert (response.status_code, "Retry-After" in response.headers) == (429, True)


async def refused_handshake(url: str, headers: dict[str, str]) -> Response:
    for _ in range(CALLS):
        try:
            async with websockets.connect(url, additional_headers=headers, proxy=None):
                pass
        except websockets.InvalidStatus as refused:
            return refused.response
    raise AssertionError("nothing was refused")


async def test_polls_of_a_task_and_of_one_that_never_was_are_slowed_alike(
    by: Speaker, tmp_path: Path
):
    poller = by["poller"]
    known = await poller.opened("note_task", {"path": str(tmp_path / "notes")})
    for task_id in (known, "x" * 43):
        refused = await until_refused(poller, "tasks/get", POLLS, taskId=task_id)
        told(refused, "polls_per_minute", POLLS)
        assert known not in refused.content.decode()
    # Another task of the same owner has a bucket of its own.
    assert (await poller.request("tasks/get", {"taskId": "y" * 43})).status == 400


# --- other limits


async def test_a_body_that_is_too_large_is_told_how_large_one_may_be(by: Speaker):
    refused = await by["other"].post(b" " * 4_200_000, headers_of(envelope("tools/list")))
    assert refused.status == 413
    assert refused.error["data"] == {
        "reason": "request_entity_too_large",
        "limit": "body_bytes",
        "most": 4 * 1024 * 1024,
    }


async def test_the_figures_count_refusals_by_the_limits_name(by: Speaker, tmp_path: Path):
    await at_the_quota(by["auto"], tmp_path / "notes")
    url = by.server.url.replace("/mcp", "/metrics")
    page = (await by.http.get(url, headers={"Authorization": f"Bearer {token('auto')}"})).text
    (counted,) = [line for line in page.splitlines() if line.startswith(COUNTED)]
    assert float(counted.split()[1]) >= 1
