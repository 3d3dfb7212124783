"""Two owners and a third on one server: nobody learns of, reaches or spends what is another's."""

import hashlib
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from outlast.tests.acceptance.waiting import until, until_file_says
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.mcp import (
    IDEMPOTENCY_KEY,
    UNDECLARED,
    RawClient,
    Reply,
    envelope,
    http_client,
)
from outlast.tests.support.serving import OUTLAST, Serving, serving

pytestmark = pytest.mark.anyio

INVALID_PARAMS = -32602
BOUND_S = 60.0
METHODS = ("tasks/get", "tasks/update", "tasks/cancel")
UNKNOWN = "x" * 43
ANSWER = {"action": "accept", "content": {"name": "Mallory"}}
TOKENS = {  # token: subject, client
    "alice-token-5c1e": ("alice", "desk"),
    "alice-second-token-77aa": ("alice", "desk"),
    "alice-elsewhere-token-90ff": ("alice", "phone"),
    "bob-token-31d0": ("bob", "desk"),
}
ALICE, ALICE_AGAIN, ALICE_ELSEWHERE, BOB = TOKENS


def token_file(tokens: dict[str, tuple[str, str]]) -> str:
    tables = [
        f'[[tokens]]\nsha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\n'
        f'subject = "{subject}"\nclient = "{client}"\n'
        for token, (subject, client) in tokens.items()
    ]
    return "\n".join(tables)


@pytest.fixture(scope="module")
async def guarded(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """A server that knows four tokens of three owners."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens.toml").write_text(token_file(TOKENS))
    config = desk_config('tokens_file = "tokens.toml"')
    async with serving(folder, config, module_database_url) as server:
        yield server


@pytest.fixture
async def alice(guarded: Serving) -> AsyncIterator[RawClient]:
    async with http_client() as http:
        yield RawClient(guarded.url, http, ALICE)


def holder(alice: RawClient, token: str | None) -> RawClient:
    return RawClient(alice.url, alice.http, token)


def as_told(reply: Reply) -> tuple[Any, ...]:
    """Everything of an answer that a client can see, but for the time."""
    headers = sorted((k, v) for k, v in reply.headers.items() if k != "date")
    return reply.status, headers, reply.content


async def told_of(client: RawClient, method: str, task_id: str) -> tuple[Any, ...]:
    params = {"taskId": task_id, "inputResponses": {"in-1": ANSWER}}
    return as_told(await client.send({**envelope(method, params), "id": 7}))


# --- another's task


@pytest.mark.promise("owners-are-isolated")
@pytest.mark.parametrize("stranger", [BOB, ALICE_ELSEWHERE], ids=["another", "another client"])
@pytest.mark.parametrize("method", METHODS)
async def test_anothers_task_is_told_of_in_the_same_bytes_as_one_that_never_was(
    alice: RawClient, method: str, stranger: str
):
    task_id = await alice.opened("sign_task_during", {"document": "d"})
    waiting = await alice.until_status(task_id, "input_required")
    eve = holder(alice, stranger)
    seen = await told_of(eve, method, task_id)
    assert seen == await told_of(eve, method, UNKNOWN)
    assert json.loads(seen[-1])["error"]["code"] == INVALID_PARAMS
    # Malformed answers to another's question must not be told apart either.
    params = {"taskId": task_id, "inputResponses": {"in-1": 5}}
    update = await eve.send({**envelope("tasks/update", params), "id": 7})
    assert as_told(update) == await told_of(eve, "tasks/update", UNKNOWN)
    assert await alice.task(task_id) == waiting


@pytest.mark.promise("owners-are-isolated")
async def test_the_same_owner_may_hold_two_tokens(alice: RawClient):
    task_id = await alice.opened("note_task", {"path": "/dev/null"})
    assert (await holder(alice, ALICE_AGAIN).task(task_id))["taskId"] == task_id


@pytest.mark.promise("owners-are-isolated")
@pytest.mark.parametrize("method", METHODS)
async def test_an_expired_task_is_told_of_in_the_same_bytes_as_one_that_never_was(
    guarded: Serving, alice: RawClient, method: str
):
    task_id = await alice.opened("red")
    await alice.until_status(task_id)
    expire(guarded.database_url, task_id)
    unknown = await told_of(alice, "tasks/get", UNKNOWN)
    assert await told_of(alice, "tasks/get", task_id) == unknown

    async def is_gone() -> bool:
        return rows_of(guarded.database_url, task_id) == 0

    await until(is_gone, BOUND_S)
    assert await told_of(alice, method, task_id) == await told_of(alice, method, UNKNOWN)


def expire(database_url: str, task_id: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "UPDATE outlast.task_view SET expires_at = now() - interval '1s' WHERE task_id = %s",
            [task_id],
        )


def rows_of(database_url: str, task_id: str) -> int:
    """All that the store has of a task, its events included."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT (SELECT count(*) FROM outlast.task_view WHERE task_id = %(id)s)"
            " + (SELECT count(*) FROM outlast.task_events WHERE originator_id = %(id)s)"
            " + (SELECT count(*) FROM outlast.run_queue WHERE task_id = %(id)s)",
            {"id": task_id},
        ).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.promise("owners-are-isolated")
async def test_a_stranger_cannot_stop_anothers_tool(alice: RawClient, tmp_path: Path):
    marker = tmp_path / "marker"
    task_id = await alice.opened("hold_task", {"marker": str(marker)})
    await until_file_says(marker, "started", BOUND_S)
    for token in (BOB, ALICE_ELSEWHERE):
        cancel = await holder(alice, token).request("tasks/cancel", {"taskId": task_id})
        assert cancel.error["code"] == INVALID_PARAMS
    assert (marker.read_text(), (await alice.task(task_id))["status"]) == ("started", "working")
    await alice.request("tasks/cancel", {"taskId": task_id})
    await until_file_says(marker, "stopped", BOUND_S)


@pytest.mark.promise("creation-is-idempotent")
async def test_a_key_is_its_owners_own(alice: RawClient, tmp_path: Path):
    meta, notes = {IDEMPOTENCY_KEY: "the same key"}, tmp_path / "notes"
    ids: list[str] = []
    for token in (ALICE, BOB, ALICE_ELSEWHERE, ALICE_AGAIN):
        reply = await holder(alice, token).call("note_task", {"path": str(notes)}, meta=meta)
        ids.append(reply.result["taskId"])
    assert len(set(ids)) == 3
    assert ids[0] == ids[3]
    # Another call under it is refused to its owner alone.
    other = await holder(alice, BOB).call("red", meta=meta)
    assert other.error["code"] == INVALID_PARAMS


@pytest.mark.parametrize("tool", ["sign_task_before", "sign_direct_during"])
async def test_a_state_cannot_be_spent_by_another(alice: RawClient, tool: str):
    arguments = {"document": "d"}
    state = (await alice.call(tool, arguments)).result["requestState"]
    answered = {"inputResponses": {"__main__:who": ANSWER}, "requestState": state}
    for token in (BOB, ALICE_ELSEWHERE):
        refused = await holder(alice, token).call(tool, arguments, **answered)
        assert refused.refusal == (400, INVALID_PARAMS)
        assert refused.error["message"] == "requestState is not valid for this call"
    assert "error" not in (await holder(alice, ALICE_AGAIN).call(tool, arguments, **answered)).body


# --- nobody


@pytest.mark.parametrize(
    ("authorization", "challenge"),
    [
        (None, "Bearer"),
        ("", 'Bearer error="invalid_token"'),
        ("Bearer", 'Bearer error="invalid_token"'),
        ("Bearer wrong-token-1234", 'Bearer error="invalid_token"'),
        (f"Basic {ALICE}", 'Bearer error="invalid_token"'),
        (ALICE, 'Bearer error="invalid_token"'),
        (f"Bearer {ALICE}x", 'Bearer error="invalid_token"'),
        (f"Bearer {hashlib.sha256(ALICE.encode()).hexdigest()}", 'Bearer error="invalid_token"'),
    ],
)
@pytest.mark.parametrize("method", ["server/discover", "tools/call", "tasks/get", "nonsense"])
async def test_who_has_no_valid_token_is_told_to_get_one_and_nothing_else(
    alice: RawClient, method: str, authorization: str | None, challenge: str
):
    body = envelope(method, {"name": "red", "taskId": UNKNOWN})
    reply = await holder(alice, None).send(body, authorization=authorization)
    assert (reply.status, reply.headers["www-authenticate"]) == (401, challenge)
    message = "A valid bearer token is required."
    assert reply.body == {"jsonrpc": "2.0", "error": {"code": -32600, "message": message}}


async def test_the_scheme_is_read_in_any_case(alice: RawClient):
    reply = await holder(alice, None).send(
        envelope("server/discover"), authorization=f"bEARER {ALICE}"
    )
    assert reply.status == 200


async def test_a_body_is_not_read_before_its_sender_is_known(alice: RawClient):
    headers = {"content-type": "application/json"}
    assert (await holder(alice, None).post(b"{nope", headers)).status == 401


async def test_no_token_is_in_the_log(guarded: Serving, alice: RawClient):
    for token in (*TOKENS, "wrong-token-1234"):
        someone = holder(alice, token)
        await someone.call("fault", capabilities=UNDECLARED)
        await someone.post(b"{nope", {"content-type": "application/json"})
    log = guarded.log.read_text()
    assert [token for token in (*TOKENS, "wrong-token-1234") if token in log] == []


# --- a server that everybody could reach


async def test_a_server_that_all_can_reach_does_not_start_without_tokens(tmp_path: Path):
    (tmp_path / "outlast.toml").write_text(desk_config())
    command = [
        str(OUTLAST),
        "serve",
        "--config",
        "outlast.toml",
        "--host",
        "0.0.0.0",
        "--port",
        "0",
    ]
    with anyio.fail_after(BOUND_S):
        ran = await anyio.run_process(
            [*command, "--database-url", "host=/nonexistent"],
            cwd=tmp_path,
            stderr=subprocess.STDOUT,
            check=False,
        )
    assert ran.returncode == 2
    said = ran.stdout.decode()
    assert said.startswith("outlast: bound to 0.0.0.0, everybody could act as ")
    assert "Traceback" not in said
