"""Another's task, one that is forgotten and one that never was: nobody can tell them apart.

Not by a byte of the answer, and not by the work done: the statements that a request causes are
compared too, and how many rows come back, as they pass on the wire to PostgreSQL.
"""

import base64
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from websockets.asyncio.client import connect

from outlast.domain import decisions
from outlast.domain.owner import LOCAL_OWNER
from outlast.tests.acceptance.waiting import until
from outlast.tests.domain.given import DEPLOY, OPENED, RESULT
from outlast.tests.service.conftest import desk_config
from outlast.tests.service.isolation_tables import METHODS
from outlast.tests.service.isolation_world import ROW, Isolated, isolated
from outlast.tests.service.test_owners import as_told, rows_of
from outlast.tests.service.test_socket import heard, listen
from outlast.tests.support.mcp import (
    IDEMPOTENCY_KEY,
    RawClient,
    Reply,
    envelope,
    headers_of,
    http_client,
)
from outlast.tests.support.publishing import now
from outlast.tests.support.sealed import OLD
from outlast.tests.support.serving import serving
from outlast.tests.support.streams import ACKNOWLEDGED, CHANGED, listening, states

pytestmark = pytest.mark.anyio

INVALID_PARAMS = -32602
ENDED_S_MAX = 60.0
TRIES = 12  # on a busy machine something passes by in most of them
UNKNOWN = "one that never was"
OWN = "an expired one"
EVENTS_CAPABILITY = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
SECRET_KEY = "a key for tests that is long enough"
SIGNING_KEY = "whsk_" + base64.b64encode(bytes(32)).decode()
SERVER = f"""
secret_key = "{SECRET_KEY}"
webhook_signing_key = "{SIGNING_KEY}"
data_keys = ["{OLD}"]
"""
CONFIG = desk_config(SERVER) + (
    "[events]\ndevelopment = true\n[quotas]\npolls_per_minute = 100000\n"
)
ALICE = ("alice", "desk")
STRANGERS = {
    "another user of the same client": ("one", "bob", "desk"),
    "another client of the same user": ("one", "alice", "phone"),
    "the same names at another issuer": ("two", "alice", "desk"),
}


@pytest.fixture(scope="module")
async def here(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Isolated]:
    async with isolated(tmp_path_factory.mktemp("isolated"), module_database_url, CONFIG) as served:
        yield served


@pytest.fixture
async def alice(here: Isolated) -> AsyncIterator[RawClient]:
    async with http_client() as http:
        yield RawClient(here.server.url, http, here.one.token(*ALICE))


@pytest.fixture(params=STRANGERS.values(), ids=list(STRANGERS))
def stranger(request: pytest.FixtureRequest, here: Isolated, alice: RawClient) -> RawClient:
    issuer, *who = request.param
    return RawClient(alice.url, alice.http, getattr(here, issuer).token(*who))


def key_of(client: RawClient) -> str:
    """The key of the owner that a client's token names."""
    import jwt

    claims = jwt.decode(client.token or "", options={"verify_signature": False})
    return json.dumps([claims["iss"], claims["sub"], claims["client_id"]], separators=(",", ":"))


async def parked(here: Isolated, client: RawClient) -> str:
    """A task of this client's that asks, and that the server has met."""
    task_id = await here.publisher.opened(owner=key_of(client))
    await here.publisher.happens(
        task_id, lambda task: decisions.finish_leg(task, task.attempt, [DEPLOY], "state", now())
    )
    assert (await client.task(task_id))["status"] == "input_required"
    return task_id


async def over(here: Isolated, client: RawClient) -> str:
    """A task of this client's that ended yesterday, and whose time is over."""
    yesterday = now() - timedelta(days=1)
    opening = replace(
        OPENED,
        task_id=secrets.token_urlsafe(32),
        at=decisions.instant(yesterday),
        owner=key_of(client),
    )
    task = await here.log.append(None, decisions.open_task(opening))
    task = await here.log.append(task, decisions.start_work(task, "tests", yesterday))
    await here.log.append(task, decisions.complete(task, task.attempt, RESULT, yesterday))
    return task.id


def forget(here: Isolated, task_id: str) -> None:
    with psycopg.connect(here.database_url) as connection:
        connection.execute("SELECT outlast.forget_tasks(%s)", [[task_id]])


async def told(client: RawClient, method: str, params: Mapping[str, Any]) -> tuple[Any, ...]:
    """The whole answer but for the time; of a stream, its head and its first message."""
    body = {**envelope(method, params, meta=params.get("_meta")), "id": 7}
    headers = headers_of(body)
    if client.token is not None:
        headers["authorization"] = f"Bearer {client.token}"
    asked = client.http.stream("POST", client.url, content=json.dumps(body), headers=headers)
    async with asked as reply:
        content = b""
        if reply.headers["content-type"].startswith("text/event-stream"):
            async for chunk in reply.aiter_raw():
                content += chunk
                if b"data: " in content and content.endswith(b"\r\n\r\n"):
                    break
        else:
            content = await reply.aread()
        return as_told(Reply(reply.status_code, reply.headers, content))


async def observed(
    here: Isolated, client: RawClient, method: str, params: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Sequence[str]]:
    """The answer, and the statements that went to the store meanwhile."""
    before = len(here.statements.executed)
    answer = await told(client, method, params)
    return answer, tuple(here.statements.executed[before:])


async def all_gone(here: Isolated, alice: RawClient, stranger: RawClient) -> Mapping[str, str]:
    """Tasks that were there; made once for each stranger."""
    kept = here.notes.setdefault(key_of(stranger), {})
    if not kept:
        kept |= {
            "a forgotten one": await over(here, stranger),
            "another's forgotten one": await over(here, alice),
            OWN: await over(here, stranger),
            "another's expired one": await over(here, alice),
            "an id that none can be": "",
        }
        forget(here, kept["a forgotten one"])
        forget(here, kept["another's forgotten one"])
    return kept


# --- every method that takes a task's id


@pytest.mark.promise("isolation-is-the-same-work")
@pytest.mark.parametrize(
    ("method", "probe"),
    [(method, name) for method, row in METHODS.items() for name in row.probes],
)
async def test_anothers_a_forgotten_and_an_unknown_task_cannot_be_told_apart(
    here: Isolated, alice: RawClient, stranger: RawClient, method: str, probe: str
):
    params_of = METHODS[method].probes[probe]
    differing: dict[str, Sequence[Sequence[str]]] = {}
    alike: set[str] = set()
    gone = await all_gone(here, alice, stranger)
    for _ in range(TRIES):
        foreign = await parked(here, alice)
        before = await alice.task(foreign), rows_of(here.database_url, foreign)
        asked = {"another's": foreign, UNKNOWN: secrets.token_urlsafe(32), **gone}
        seen = {
            name: await observed(here, stranger, method, params_of(task_id))
            for name, task_id in asked.items()
        }
        answers = {name: answer for name, (answer, _) in seen.items()}
        unlike = {name: told for name, told in answers.items() if told != answers[UNKNOWN]}
        assert unlike == {}, answers[UNKNOWN]
        assert before == (await alice.task(foreign), rows_of(here.database_url, foreign))
        work = {name: statements for name, (_, statements) in seen.items()}
        alike |= {name for name in work if _like(name, work)}
        differing = {name: (work[name], work[UNKNOWN]) for name in work if name not in alike}
        if not differing:
            return
    # Each try was with a new task. What is always different is not what happened to pass by.
    pytest.fail(f"the work done tells them apart, here and for an unknown one: {differing}")


def _like(name: str, work: Mapping[str, Sequence[str]]) -> bool:
    """Whether it is as much work as an unknown id. Of one's own, which one knew of, a row may
    still come back."""
    if name == OWN:
        return [each for each in work[name] if each != ROW] == [
            each for each in work[UNKNOWN] if each != ROW
        ]
    return work[name] == work[UNKNOWN]


def test_the_statements_are_really_seen(here: Isolated):
    seen = here.statements.executed
    assert any("outlast.task_view" in each for each in seen)
    assert ROW in seen


# --- what is watched beside one's own


async def test_of_two_tasks_that_are_listened_to_the_foreign_one_is_silently_absent(
    here: Isolated, alice: RawClient, stranger: RawClient
):
    foreign, own = await parked(here, alice), await parked(here, stranger)
    async with listening(stranger.url, foreign, own, token=stranger.token) as stream:
        acknowledged, first = await stream.messages(2)
        assert acknowledged["params"]["notifications"]["taskIds"] == [own]
        # That it changes is not told either.
        await here.publisher.happens(foreign, lambda task: decisions.request_cancel(task, now()))
        await here.publisher.happens(own, lambda task: decisions.request_cancel(task, now()))
        rest = await stream.to_the_end()
    assert {task["taskId"] for task in states([first, *rest])} == {own}
    assert foreign not in json.dumps([acknowledged, first, *rest])


async def test_of_two_tasks_on_a_websocket_the_foreign_one_is_silently_absent(
    here: Isolated, alice: RawClient, stranger: RawClient
):
    foreign, own = await parked(here, alice), await parked(here, stranger)
    url = f"ws{here.server.base_url.removeprefix('http')}/ws"
    headers = {"Authorization": f"Bearer {stranger.token}"}
    async with connect(url, additional_headers=headers, proxy=None) as connection:
        await connection.send(listen("w", foreign, own))
        acknowledged, first = await heard(connection), await heard(connection)
        assert (acknowledged["method"], first["method"]) == (ACKNOWLEDGED, CHANGED)
        assert acknowledged["params"]["notifications"]["taskIds"] == [own]
        for task_id in (foreign, own):
            await here.publisher.happens(
                task_id, lambda task: decisions.request_cancel(task, now())
            )
        told_last: list[dict[str, Any]] = []
        while not told_last or "result" not in told_last[-1]:
            told_last.append(await heard(connection))
    assert {task["taskId"] for task in states([first, *told_last])} == {own}


async def test_a_place_in_anothers_events_is_no_better_than_a_made_up_one(
    here: Isolated, alice: RawClient, stranger: RawClient
):
    await parked(here, alice)
    await parked(here, stranger)
    polled = {"name": "task.updated", "cursor": None}
    cursor = (await alice.request("events/poll", polled)).result["cursor"]
    made_up = "v1." + "A" * (len(cursor) - 3)
    seen: list[tuple[tuple[Any, ...], Sequence[str]]] = []
    for _ in range(TRIES):
        seen = [
            await observed(here, stranger, "events/poll", polled | {"cursor": text})
            for text in (cursor, made_up)
        ]
        assert seen[0][0] == seen[1][0]
        if seen[0][1] == seen[1][1]:
            break
    else:
        pytest.fail(f"the work done tells them apart: {seen}")
    result = json.loads(seen[0][0][-1])["result"]
    with psycopg.connect(here.database_url) as connection:
        stored = connection.execute(
            "SELECT task_id FROM outlast.task_view WHERE owner = %s", [key_of(stranger)]
        ).fetchall()
    own = {task_id for (task_id,) in stored}
    assert {event["data"]["taskId"] for event in result["events"]} <= own
    assert result["truncated"]


async def test_a_key_that_another_has_used_is_as_new_as_any(
    here: Isolated, alice: RawClient, stranger: RawClient
):
    arguments = {"path": "/dev/null"}
    used = f"used-{secrets.token_hex(8)}"
    first = (await alice.call("note_task", arguments, meta={IDEMPOTENCY_KEY: used})).result
    tried: list[Sequence[str]] = []
    for _ in range(TRIES):
        tried = []
        for key in (used, f"new-{secrets.token_hex(8)}"):
            before = len(here.statements.executed)
            created = await stranger.call("note_task", arguments, meta={IDEMPOTENCY_KEY: key})
            tried.append(tuple(here.statements.executed[before:]))
            assert created.result["taskId"] != first["taskId"]
        if tried[0] == tried[1]:
            return
        used = f"used-{secrets.token_hex(8)}"
        await alice.call("note_task", arguments, meta={IDEMPOTENCY_KEY: used})
    pytest.fail(f"the work done tells them apart: {tried}")


# --- an identity on one side alone


async def test_whoever_has_no_identity_and_whoever_has_one_are_strangers(
    here: Isolated, alice: RawClient, tmp_path: Path
):
    of_nobody = await here.publisher.opened(owner=LOCAL_OWNER.key)
    of_alice = await parked(here, alice)
    unknown = secrets.token_urlsafe(32)
    async with serving(tmp_path, CONFIG, here.database_url, ["--no-work"]) as open_to_all:
        nobody = RawClient(open_to_all.url, alice.http)
        assert (await nobody.task(of_nobody))["taskId"] == of_nobody
        for client, foreign in ((nobody, of_alice), (alice, of_nobody)):
            for method in ("tasks/get", "tasks/cancel"):
                seen = [
                    as_told(await client.send({**envelope(method, {"taskId": one}), "id": 7}))
                    for one in (foreign, unknown)
                ]
                assert seen[0] == seen[1]
                assert json.loads(seen[0][-1])["error"]["code"] == INVALID_PARAMS


# --- what is kept of a caller


async def test_a_token_is_neither_stored_nor_known_to_the_work_that_it_began(
    here: Isolated, alice: RawClient, tmp_path: Path
):
    # It is good for a moment longer: the work begins when it is over.
    client = RawClient(alice.url, alice.http, here.one.token("carol", "desk"))
    marker = tmp_path / "notes"
    task_id = await client.opened("note_task", {"path": str(marker), "text": "x"})
    stored = everything_in(here.database_url)
    assert task_id in stored
    parts = (client.token or "").split(".")
    assert [part for part in parts if part in stored] == []
    async with serving(tmp_path, here.config, here.database_url) as worker:
        assert (await client.until_status(task_id, seconds=ENDED_S_MAX))["status"] == "completed"

        async def is_in_neither_log() -> bool:
            logs = worker.log.read_text() + here.server.log.read_text()
            return not any(part in logs for part in parts)

        await until(is_in_neither_log, 5.0)


def everything_in(database_url: str) -> str:
    """Every row of every table, as text."""
    with psycopg.connect(database_url) as connection:
        tables = connection.execute(
            "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'outlast'"
        ).fetchall()
        rows: list[Any] = []
        for (table,) in tables:
            query = f"SELECT encode(convert_to(t::text, 'UTF8'), 'escape') FROM outlast.{table} t"
            rows += connection.execute(query.encode()).fetchall()
        states = connection.execute("SELECT state, 'x' FROM outlast.task_events").fetchall()
    return "\n".join([str(row[0]) for row in rows] + [repr(bytes(row[0])) for row in states])
