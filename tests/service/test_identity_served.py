"""Access tokens of a real issuer at the real server: every door, what it says, what it keeps."""

import hashlib
import json
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
import pytest
import websockets

from outlast.adapters import embedded_cluster
from outlast.domain import draft
from outlast.tests.acceptance.waiting import until
from outlast.tests.service.conftest import desk_config
from outlast.tests.service.test_socket import connected, heard, listen
from outlast.tests.support.issuing import AUDIENCE, USUAL, Issuer, SigningKey, forged, issuing
from outlast.tests.support.mcp import RawClient, Reply, envelope, http_client
from outlast.tests.support.ports import free_port
from outlast.tests.support.serving import OUTLAST, Serving, serving
from outlast.tests.support.streams import Broken, listening
from outlast.tests.support.upstreams import http_server, stdio, until_it_listens

pytestmark = pytest.mark.anyio

BOUND_S = 60.0
SHORT_S = 12  # enough to open something with the token, also on a busy machine
STATIC = "a-static-token-of-the-small-team"
UNKNOWN = "x" * 43
METADATA = "https://outlast.example/.well-known/oauth-protected-resource/mcp"
RSA = SigningKey.made("rsa-1", "RS256")
EC = SigningKey.made("ec-1", "ES256")

# A token's last half minute is leeway; the tests have none of it to spare.
HASTY = (
    "from outlast.adapters import oauth; oauth.LEEWAY_S = 0\n"
    "from outlast.service.cli import main; main()"
)


@dataclass(frozen=True)
class World:
    """The server, its issuer, and a client without a token."""

    server: Serving
    issuer: Issuer
    http: httpx2.AsyncClient

    def client(self, token: str | None) -> RawClient:
        return RawClient(self.server.url, self.http, token)

    async def page(self, path: str, token: str | None, method: str = "GET") -> httpx2.Response:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return await self.http.request(method, self.server.base_url + path, headers=headers)


def config_for(issuer: Issuer, server: str = "", upstreams: str = "") -> str:
    return desk_config(f'tokens_file = "tokens.toml"\nlog_level = "debug"\n{server}') + (
        f'{upstreams}\n[identity]\nresource = "{AUDIENCE}"\n'
        f'[[identity.issuers]]\nissuer = "{issuer.url}"\njwks_url = "{issuer.jwks_url}"\n'
    )


@pytest.fixture(scope="module")
async def world(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """A server that knows one issuer and one token of a file; an upstream tells what it hears."""
    folder, port = tmp_path_factory.mktemp("identity"), free_port()
    digest = hashlib.sha256(STATIC.encode()).hexdigest()
    (folder / "tokens.toml").write_text(f'[[tokens]]\nsha256 = "{digest}"\nsubject = "carol"\n')
    command = json.dumps(stdio("echoing").command)
    upstreams = (
        f'[upstreams.far]\nurl = "http://127.0.0.1:{port}/mcp"\n'
        f"[upstreams.near]\ncommand = {command}\n"
        '[tools.far_sent]\nrun = "task"\n[tools.near_sent]\nrun = "task"\n'
    )
    with http_server("echoing", port):
        await until_it_listens(port)
        async with issuing(EC, RSA) as issuer, http_client() as http:
            config = config_for(issuer, upstreams=upstreams)
            outlast = [str(OUTLAST.with_name("python")), "-c", HASTY]
            async with serving(folder, config, module_database_url, outlast=outlast) as server:
                yield World(server, issuer, http)


def as_told(reply: Reply) -> tuple[Any, ...]:
    headers = sorted((k, v) for k, v in reply.headers.items() if k != "date")
    return reply.status, headers, reply.content


# --- who comes in


async def test_a_token_of_the_issuer_and_one_of_the_file_both_open(world: World):
    for token in (world.issuer.token(), STATIC):
        client = world.client(token)
        task_id = await client.opened("desk_note_task", {"path": "/dev/null"})
        assert (await client.until_status(task_id, "completed"))["status"] == "completed"


async def test_the_owner_is_issuer_subject_and_client_and_all_three_count(world: World):
    mine = world.client(world.issuer.token())
    task_id = await mine.opened("desk_note_task", {"path": "/dev/null"})
    renewed = world.client(world.issuer.token(RSA, exp=int(time.time()) + 99))
    assert (await renewed.task(task_id))["taskId"] == task_id
    others: list[dict[str, Any]] = [{"sub": "bert"}, {"client_id": "phone"}]
    for changed in others:
        other = world.client(world.issuer.token(**changed))
        reply = await other.send({**envelope("tasks/get", {"taskId": task_id}), "id": 7})
        never = await other.send({**envelope("tasks/get", {"taskId": UNKNOWN}), "id": 7})
        assert as_told(reply) == as_told(never)


def _bad_tokens(issuer: Issuer) -> dict[str, str]:
    past = int(time.time()) - 3600
    header = {"alg": "HS256", "typ": "at+jwt", "kid": "rsa-1"}
    return {
        "no JWT": "nonsense",
        "expired": issuer.token(exp=past),
        "for another": issuer.token(aud="https://other.example"),
        "of another issuer": issuer.token(iss="https://other.example"),
        "unsigned": issuer.token().rsplit(".", 1)[0] + ".",
        "alg none": forged(issuer.claims(), {"alg": "none", "typ": "at+jwt"}),
        "key confusion": forged(issuer.claims(), header, RSA.pem),
        "under a stranger's key": issuer.token(SigningKey.made("ec-1", "ES256")),
    }


@pytest.mark.promise("only-tokens-for-this-service-open-it")
@pytest.mark.parametrize("method", ["server/discover", "tools/call", "tasks/get", "nonsense"])
async def test_all_bad_tokens_are_answered_in_the_very_same_bytes(world: World, method: str):
    body = {**envelope(method, {"name": "desk_red", "taskId": UNKNOWN}), "id": 7}
    bad = _bad_tokens(world.issuer)
    told = {name: as_told(await world.client(token).send(body)) for name, token in bad.items()}
    first = told["no JWT"]
    assert {name: one for name, one in told.items() if one != first} == {}
    status, headers, content = first
    challenge = f'Bearer error="invalid_token", scope="{USUAL}", resource_metadata="{METADATA}"'
    assert (status, dict(headers)["www-authenticate"]) == (401, challenge)
    assert json.loads(content)["error"]["message"] == "A valid bearer token is required."


DOORS = ["/metrics", "/admin/webhooks", "/admin/webhooks/whatever"]


@pytest.mark.promise("only-tokens-for-this-service-open-it")
@pytest.mark.parametrize("path", DOORS)
async def test_bad_tokens_open_no_page_and_are_told_the_same(world: World, path: str):
    told = set()
    for token in _bad_tokens(world.issuer).values():
        reply = await world.page(path, token)
        told.add((reply.status_code, reply.headers["www-authenticate"], reply.content))
    ((status, challenge, _),) = told
    assert (status, challenge) == (
        401,
        f'Bearer error="invalid_token", scope="outlast:operate", resource_metadata="{METADATA}"',
    )


async def test_bad_tokens_open_no_socket(world: World):
    told = set()
    for token in _bad_tokens(world.issuer).values():
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with connected(world.server, token):
                pass
        reply = refused.value.response
        told.add((reply.status_code, reply.headers["www-authenticate"], bytes(reply.body)))
    ((status, challenge, _),) = told
    assert (status, challenge.startswith('Bearer error="invalid_token"')) == (401, True)


async def test_who_brings_no_token_is_told_where_to_get_one_and_no_fault(world: World):
    reply = await world.client(None).request("tools/list")
    challenge = f'Bearer scope="{USUAL}", resource_metadata="{METADATA}"'
    assert (reply.status, reply.headers["www-authenticate"]) == (401, challenge)


async def test_two_tokens_in_one_request_are_none(world: World):
    content = json.dumps(envelope("server/discover")).encode()
    both = [("authorization", f"Bearer {world.issuer.token()}")] * 2
    headers = [("content-type", "application/json"), *both]
    assert (await world.client(None).post(content, headers)).status == 401


async def test_a_token_in_the_address_opens_nothing(world: World):
    reply = await world.page(f"/metrics?access_token={_operator(world)}", None)
    assert reply.status_code == 401


async def test_a_good_token_that_names_no_client_is_told_so(world: World):
    reply = await world.client(world.issuer.token(client_id=None)).request("tools/list")
    assert (reply.status, "client_id or azp" in reply.error["message"]) == (401, True)


# --- what they may do


def _operator(world: World) -> str:
    return world.issuer.token(scope="outlast:operate")


CALL, WATCH = "outlast:call", "outlast:watch"
NEEDS = {
    "server/discover": None,
    "tools/list": None,
    "tools/call": CALL,
    "resources/list": CALL,
    "resources/templates/list": CALL,
    "resources/read": CALL,
    "prompts/list": CALL,
    "prompts/get": CALL,
    "completion/complete": CALL,
    "tasks/update": CALL,
    "tasks/cancel": CALL,
    "tasks/get": WATCH,
    "subscriptions/listen": WATCH,
    "events/list": WATCH,
    "events/poll": WATCH,
    "events/stream": WATCH,
    "events/subscribe": WATCH,
    "events/unsubscribe": WATCH,
}


@pytest.mark.promise("each-door-has-its-scope")
@pytest.mark.parametrize("method", NEEDS)
async def test_each_method_needs_its_scope(world: World, method: str):
    params: dict[str, Any] = {"name": "desk_none", "uri": "note://none", "taskId": UNKNOWN}
    body = {**envelope(method, params), "id": 7}
    needed = NEEDS[method]
    for scope in ("", CALL, WATCH, "outlast:operate outlast:audit", "call watch"):
        reply = await world.client(world.issuer.token(scope=scope)).send(body)
        if needed in (None, scope):
            assert reply.status != 403
            continue
        assert reply.status == 403
        assert reply.headers["www-authenticate"] == (
            f'Bearer error="insufficient_scope", scope="{needed}", resource_metadata="{METADATA}"'
        )
        assert reply.body == {
            "jsonrpc": "2.0",
            "id": 7,
            "error": {
                "code": -32600,
                "message": f"This needs the scope {needed}",
                "data": {"reason": "insufficient_scope", "scope": needed},
            },
        }


@pytest.mark.promise("each-door-has-its-scope")
async def test_a_call_that_brings_a_webhook_needs_to_watch_too(world: World):
    caller = world.client(world.issuer.token(scope=CALL))
    meta = {draft.WEBHOOK_META_KEY: {"url": "https://a.example"}}
    reply = await caller.call("desk_note_task", {"path": "/dev/null"}, meta=meta)
    assert reply.status == 403
    assert f'scope="{CALL} {WATCH}"' in reply.headers["www-authenticate"]


@pytest.mark.promise("each-door-has-its-scope")
@pytest.mark.parametrize("path", DOORS)
async def test_pages_are_for_who_may_operate(world: World, path: str):
    for scope in (USUAL, "outlast:audit", ""):
        reply = await world.page(path, world.issuer.token(scope=scope))
        assert reply.status_code == 403
        assert (
            'error="insufficient_scope", scope="outlast:operate"'
            in (reply.headers["www-authenticate"])
        )
    assert (await world.page(path, STATIC)).status_code == 403
    assert (await world.page(path, _operator(world))).status_code in (200, 404)


async def test_a_socket_opens_for_all_and_watches_for_who_may_watch(world: World):
    async with connected(world.server, world.issuer.token(scope=CALL)) as connection:
        await connection.send(listen(1, UNKNOWN))
        error = (await heard(connection))["error"]
    assert error["data"] == {"reason": "insufficient_scope", "scope": WATCH}


# --- where the metadata is


@pytest.mark.parametrize("path", ["", "/mcp"])
async def test_the_metadata_names_the_resource_its_issuers_and_the_usual_scopes(
    world: World, path: str
):
    reply = await world.page(f"/.well-known/oauth-protected-resource{path}", None)
    assert reply.status_code == 200
    assert reply.json() == {
        "resource": AUDIENCE,
        "authorization_servers": [world.issuer.url],
        "scopes_supported": USUAL.split(),
        "bearer_methods_supported": ["header"],
        "resource_name": "Outlast",
    }


# --- how long


@pytest.mark.promise("a-stream-ends-with-its-token")
async def test_a_stream_is_cut_off_when_its_token_expires_and_a_new_one_goes_on(world: World):
    client = world.client(world.issuer.token())
    task_id = await client.opened("desk_sign_task_during", {"document": "d"})
    short = world.issuer.token(exp=int(time.time()) + SHORT_S)
    url = world.server.url
    with anyio.fail_after(BOUND_S):
        async with listening(url, task_id, token=short) as stream:
            await stream.messages(2)
            with pytest.raises(Broken):
                await stream.to_the_end()
    assert (await world.client(short).request("tasks/get", {"taskId": task_id})).status == 401
    async with listening(url, task_id, token=world.issuer.token()) as stream:
        await stream.messages(2)


@pytest.mark.promise("a-stream-ends-with-its-token")
async def test_a_socket_is_closed_by_policy_when_its_token_expires(world: World):
    client = world.client(world.issuer.token())
    task_id = await client.opened("desk_sign_task_during", {"document": "d"})
    short = world.issuer.token(exp=int(time.time()) + SHORT_S)
    with anyio.fail_after(BOUND_S):
        async with connected(world.server, short) as connection:
            await connection.send(listen(1, task_id))
            await connection.wait_closed()
    assert (connection.close_code, connection.close_reason) == (1008, "the token has expired")

    async def is_let_go() -> bool:
        page = await world.page("/metrics", _operator(world))
        return "outlast_watches_open 0" in page.text

    await until(is_let_go, BOUND_S)


# --- what becomes of a token


@pytest.mark.promise("a-callers-token-goes-nowhere")
@pytest.mark.parametrize("upstream", ["far", "near"])
async def test_a_callers_token_reaches_no_upstream_no_log_and_no_table(world: World, upstream: str):
    marked = world.issuer.token(jti="marked-token")
    client = world.client(marked)
    task_id = await client.opened(f"{upstream}_sent")
    ended = await client.until_status(task_id, "completed")
    seen = json.loads(ended["result"]["content"][0]["text"])
    assert upstream == "near" or "mcp-method" in seen["headers"] or "host" in seen["headers"]
    assert [name for name in seen["headers"] if name.lower() == "authorization"] == []
    async with connected(world.server, marked) as connection:
        await connection.send(listen(1, task_id))
        await heard(connection)
    await world.client(marked[:-9]).request("tools/list")
    dump, log = await _dumped(world.server.database_url), world.server.log.read_bytes()
    assert task_id.encode() in dump
    assert b"an access token is refused" in log
    for part in marked.split("."):
        places = (json.dumps(seen).encode(), dump, log)
        assert [part.encode() in place for place in places] == [False] * 3


async def _dumped(database_url: str) -> bytes:
    program = shutil.which("pg_dump", path=str(embedded_cluster.find_programs()))
    assert program is not None
    with anyio.fail_after(BOUND_S):
        ran = await anyio.run_process([program, "--dbname", database_url], check=True)
    return ran.stdout
