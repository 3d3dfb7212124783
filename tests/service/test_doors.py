"""Every method, page and frame, tried with every kind of token: who is let in, and who is not.

All tokens that are not good are refused in the same bytes, before the store is asked anything.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
import websockets
from websockets.asyncio.client import connect

from outlast.delivery.webhook.signing import parse_secret
from outlast.domain import decisions
from outlast.service import config as configs, settings, wiring
from outlast.service.app import assemble
from outlast.service.callbacks import Tickets
from outlast.tests.delivery.posting import signed
from outlast.tests.service.conftest import tasks_stored
from outlast.tests.service.isolation_tables import (
    BY_METHOD,
    CONSOLE,
    FRAMES,
    METHODS,
    PAGES,
    SCOPES,
    SIGN_IN,
    WATCH,
    Page,
    routes_of,
)
from outlast.tests.service.isolation_world import Isolated, isolated
from outlast.tests.service.test_isolation import ALICE, CONFIG, SECRET_KEY, key_of, parked, told
from outlast.tests.service.test_owners import as_told
from outlast.tests.service.test_socket import heard, listen
from outlast.tests.support.mcp import RawClient, Reply, envelope, http_client
from outlast.tests.support.publishing import now
from outlast.tests.support.serving import serving
from outlast.tests.support.streams import Broken, listening

pytestmark = pytest.mark.anyio

TRIES = 12  # on a busy machine something passes by in many of them
LEEWAY_S = 30  # that the service grants an issuer's clock
LAPSES_S = 12
READ_S_MAX = 30.0
FORBIDDEN, UNAUTHORIZED, SEE_OTHER = 403, 401, 303


@pytest.fixture(scope="module")
async def here(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Isolated]:
    async with isolated(tmp_path_factory.mktemp("doors"), module_database_url, CONFIG) as served:
        yield served


@pytest.fixture
async def alice(here: Isolated) -> AsyncIterator[RawClient]:
    async with http_client() as http:
        yield RawClient(here.server.url, http, here.one.token(*ALICE))


def with_scopes(here: Isolated, alice: RawClient, *scopes: str) -> RawClient:
    text = " ".join(f"outlast:{scope}" for scope in scopes)
    return RawClient(alice.url, alice.http, here.one.token(*ALICE, text))


async def says(client: RawClient, method: str, token: str | None) -> tuple[Any, ...]:
    asking = RawClient(client.url, client.http, token)
    return await told(asking, method, METHODS[method].good)


async def opens(client: RawClient, verb: str, page: Page, token: str | None) -> tuple[Any, ...]:
    url = client.url.removesuffix("/mcp") + page.path
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    reply = await client.http.request(verb, url, json=page.body, headers=headers)
    return as_told(Reply(reply.status_code, reply.headers, reply.content))


async def shakes_hands(here: Isolated, token: str | None) -> tuple[Any, ...]:
    """What a WebSocket's handshake is refused with."""
    url = f"ws{here.server.base_url.removeprefix('http')}/ws"
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with pytest.raises(websockets.InvalidStatus) as refused:
        await connect(url, additional_headers=headers, proxy=None)
    reply = refused.value.response
    given = sorted((k.lower(), v) for k, v in reply.headers.raw_items() if k.lower() != "date")
    return reply.status_code, given, reply.body


# --- no way in is left out


async def built_application(here: Isolated) -> Any:
    config = configs.parse(here.config, "outlast.toml")
    chosen = settings.load({}, config.server, has_issuers=True)
    built = await wiring.build(chosen, config, here.database_url, claims=False)
    try:
        return wiring.parts(chosen, config, built)
    finally:
        built.log.close()


async def test_every_method_every_page_and_every_frame_has_a_row(here: Isolated):
    parts = await built_application(here)
    endpoint, socket = parts.endpoint, parts.socket
    assert {*endpoint._methods, *endpoint._streams} == set(METHODS)
    assert {*socket._streams, "subscriptions/listen", "notifications/cancelled"} == set(FRAMES)
    routes = routes_of(assemble(parts))
    assert {(verb, path) for verb, path in routes if not path.startswith(CONSOLE)} == set(PAGES)


@pytest.mark.promise("console-shows-nobody-anothers-task")
async def test_no_page_of_the_console_opens_to_a_token_without_a_session(
    here: Isolated, alice: RawClient
):
    routes = routes_of(assemble(await built_application(here)))
    console = {(verb, path) for verb, path in routes if path.startswith(CONSOLE)}
    assert console > SIGN_IN
    for verb, path in sorted(console - SIGN_IN):
        url = alice.url.removesuffix("/mcp") + re.sub(r"\{[^}]+\}", "x", path)
        for headers in ({}, {"authorization": f"Bearer {alice.token}"}):
            reply = await alice.http.request(verb, url, headers=headers, follow_redirects=False)
            if verb == "POST":
                assert reply.status_code == UNAUTHORIZED, path
            else:
                assert reply.status_code == SEE_OTHER, path
                assert reply.headers["location"].startswith("/console/sign-in?next="), path


# --- tokens that are not good


@pytest.mark.promise("only-tokens-for-this-service-open-it")
async def test_tokens_that_are_not_good_are_refused_in_the_same_bytes_at_every_method(
    here: Isolated, alice: RawClient
):
    for method in METHODS:
        seen = {
            name: await says(alice, method, token)
            for name, token in here.one.bad_tokens(here.two).items()
        }
        expected = seen["expired"]
        assert {name: answer for name, answer in seen.items() if answer != expected} == {}
        assert expected[0] == UNAUTHORIZED
        assert (await says(alice, method, alice.token))[0] != UNAUTHORIZED


@pytest.mark.promise("only-tokens-for-this-service-open-it")
async def test_who_has_no_token_hears_the_same_at_every_method(here: Isolated, alice: RawClient):
    seen = [await says(alice, method, None) for method in METHODS]
    assert all(answer == seen[0] for answer in seen)
    assert seen[0][0] == UNAUTHORIZED
    assert "error" not in dict(seen[0][1])["www-authenticate"]


@pytest.mark.promise("only-tokens-for-this-service-open-it")
async def test_tokens_that_are_not_good_are_refused_in_the_same_bytes_at_every_page(
    here: Isolated, alice: RawClient
):
    tokens = here.one.bad_tokens(here.two)
    for (verb, path), page in PAGES.items():
        if page.scope == BY_METHOD:
            continue
        seen = {name: await opens(alice, verb, page, token) for name, token in tokens.items()}
        assert len(set(map(repr, seen.values()))) == 1, (path, seen)
        status = seen["expired"][0]
        if page.scope is None:
            # For everybody: a token makes no difference, and is not even looked at.
            assert seen["expired"] == await opens(alice, verb, page, None), path
            assert status != UNAUTHORIZED, path
        else:
            assert status == UNAUTHORIZED, path
            assert (await opens(alice, verb, page, None))[0] == UNAUTHORIZED, path


@pytest.mark.promise("only-tokens-for-this-service-open-it")
async def test_tokens_that_are_not_good_are_refused_in_the_same_bytes_at_the_websocket(
    here: Isolated,
):
    tokens = here.one.bad_tokens(here.two)
    seen = {name: await shakes_hands(here, token) for name, token in tokens.items()}
    assert {name: answer for name, answer in seen.items() if answer != seen["expired"]} == {}
    assert seen["expired"][0] == UNAUTHORIZED
    assert (await shakes_hands(here, None))[0] == UNAUTHORIZED


async def test_the_store_is_asked_nothing_for_a_token_that_is_not_good(
    here: Isolated, alice: RawClient
):
    for name, token in here.one.bad_tokens(here.two).items():
        asked: list[str] = ["not tried yet"]
        for _ in range(TRIES):  # what the server does by itself may pass by
            before = len(here.statements.executed)
            await says(alice, "tasks/get", token)
            asked = here.statements.executed[before:]
            if not asked:
                break
        assert asked == [], name


# --- scopes


@pytest.mark.promise("each-door-has-its-scope")
@pytest.mark.parametrize("method", METHODS)
async def test_a_method_is_open_to_its_scope_and_to_no_other(
    here: Isolated, alice: RawClient, method: str
):
    scope, before = METHODS[method].scope, everything_counted(here)
    for held in SCOPES:
        answer = await says(alice, method, with_scopes(here, alice, held).token)
        assert answer[0] != UNAUTHORIZED
        assert (answer[0] == FORBIDDEN) == (scope not in (None, held)), (held, answer)
    if scope is None:
        return
    others = [each for each in SCOPES if each != scope]
    poor = with_scopes(here, alice, *others)
    stored = everything_counted(here)
    refused = await says(alice, method, poor.token)
    body = json.loads(refused[-1])
    assert (body["id"], "result" in body) == (7, False)
    assert f"outlast:{scope}" in dict(refused[1])["www-authenticate"]
    assert everything_counted(here) == stored
    assert stored >= before


@pytest.mark.promise("each-door-has-its-scope")
async def test_a_page_is_open_to_its_scope_and_to_no_other(here: Isolated, alice: RawClient):
    for (verb, path), page in PAGES.items():
        if page.scope in (None, BY_METHOD):
            continue
        for held in SCOPES:
            client = with_scopes(here, alice, held)
            status = (await opens(client, verb, page, client.token))[0]
            assert (status == FORBIDDEN) == (held != page.scope), (path, held)
            assert status != UNAUTHORIZED, (path, held)


@pytest.mark.promise("each-door-has-its-scope")
@pytest.mark.parametrize("frame", FRAMES)
async def test_a_frame_is_open_to_its_scope_and_to_no_other(
    here: Isolated, alice: RawClient, frame: str
):
    url = f"ws{here.server.base_url.removeprefix('http')}/ws"
    for held in SCOPES:
        token = with_scopes(here, alice, held).token
        headers = {"Authorization": f"Bearer {token}"}
        async with connect(url, additional_headers=headers, proxy=None) as connection:
            if frame == "notifications/cancelled":
                # It opens nothing and is never answered: what follows it is.
                cancel = {"jsonrpc": "2.0", "method": frame, "params": {"requestId": "w"}}
                await connection.send(json.dumps(cancel))
                await connection.send(json.dumps({**envelope("nonsense"), "id": 8}))
                assert (await heard(connection))["id"] == 8
                continue
            body = {**envelope(frame, METHODS[frame].good), "id": 7}
            await connection.send(json.dumps(body))
            answer = await heard(connection)
            assert ("error" in answer) == (held != WATCH), answer


async def test_a_call_without_the_scope_stores_no_task(here: Isolated, alice: RawClient):
    stored = tasks_stored(here.database_url)
    poor = with_scopes(here, alice, "watch", "operate", "audit")
    for tool in ("note_task", "note_auto", "note_only", "sign_task_before"):
        refused = await poor.call(tool, {"path": "/dev/null", "document": "d"})
        assert refused.status == FORBIDDEN
    assert tasks_stored(here.database_url) == stored


def everything_counted(here: Isolated) -> tuple[int, ...]:
    with psycopg.connect(here.database_url) as connection:
        row = connection.execute(
            "SELECT (SELECT count(*) FROM outlast.task_events),"
            " (SELECT count(*) FROM outlast.task_view),"
            " (SELECT count(*) FROM outlast.webhook_subscriptions)"
        ).fetchone()
    return tuple(row or ())


# --- callbacks


async def test_a_callback_is_opened_by_its_own_secret_and_by_nothing_else(
    here: Isolated, alice: RawClient
):
    first, second = await delegated(here, alice), await delegated(here, alice)
    (url, secret), (_, anothers) = first, second
    body = b'{"type":"progress","progress":1}'
    stored = everything_counted(here)
    seen: list[tuple[Any, ...]] = []
    for key in (anothers, bytes(32)):
        headers = signed(key, "none", "evt_1", body) | {"authorization": f"Bearer {alice.token}"}
        reply = await alice.http.post(url, content=body, headers=headers)
        seen.append(as_told(Reply(reply.status_code, reply.headers, reply.content)))
    assert seen[0] == seen[1]
    assert seen[0][0] == UNAUTHORIZED
    assert everything_counted(here) == stored
    taken = await alice.http.post(url, content=body, headers=signed(secret, "none", "evt_1", body))
    assert taken.status_code == 204


async def delegated(here: Isolated, client: RawClient) -> tuple[str, bytes]:
    """The callback of a task whose job runs elsewhere: its URL and its secret."""
    task_id = await here.publisher.opened(owner=key_of(client))
    await here.publisher.happens(
        task_id, lambda task: decisions.delegate(task, task.attempt, None, now())
    )
    offered = Tickets(SECRET_KEY, here.server.base_url).offer(here.publisher.tasks[task_id])
    assert offered is not None
    return offered["url"], parse_secret(offered["secret"])


# --- an identity that ends


async def test_a_stream_ends_with_the_token_that_opened_it(here: Isolated, alice: RawClient):
    own = await parked(here, alice)
    token = lapsing(here)
    with anyio.fail_after(READ_S_MAX):
        async with listening(alice.url, own, token=token) as stream:
            first = await stream.messages(2)
            with pytest.raises(Broken):  # cut, and not ended: who comes back has lost nothing
                await stream.message()
    assert first[1]["params"]["taskId"] == own


async def test_a_websocket_ends_with_the_token_that_opened_it(here: Isolated, alice: RawClient):
    url = f"ws{here.server.base_url.removeprefix('http')}/ws"
    own = await parked(here, alice)
    headers = {"Authorization": f"Bearer {lapsing(here)}"}
    async with connect(url, additional_headers=headers, proxy=None) as connection:
        await connection.send(listen("w", own))
        with anyio.fail_after(READ_S_MAX):
            await connection.wait_closed()
    assert connection.close_code == 1008


def lapsing(here: Isolated) -> str:
    """A token of alice's that is good long enough to open something with it, and not much more."""
    ends = int(now().timestamp()) - LEEWAY_S + LAPSES_S
    return here.one.token(*ALICE, exp=ends)


# --- the place that one owner takes


async def test_an_owner_at_its_limit_is_told_so_and_takes_no_place_from_others(
    here: Isolated, alice: RawClient, tmp_path: Path
):
    config = here.config.replace("[quotas]", "[quotas]\ntasks_per_owner = 3")
    async with serving(tmp_path, config, here.database_url, ["--no-work"]) as narrow:
        greedy = RawClient(narrow.url, alice.http, here.one.token("mallory", "desk"))
        modest = RawClient(narrow.url, alice.http, here.one.token("dave", "desk"))
        arguments: Mapping[str, Any] = {"path": "/dev/null"}
        for _ in range(3):
            await greedy.opened("note_task", arguments)
        stored = everything_counted(here)
        refused = await greedy.call("note_task", arguments)
        assert refused.error["data"]["limit"] == "tasks_per_owner"
        assert everything_counted(here) == stored
        assert await modest.opened("note_task", arguments)
