"""`/ws`: who is refused at the door, and what is answered and what is not on a connection."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from outlast.tests.service.conftest import desk_config
from outlast.tests.service.test_listen import ALICE, TOKENS, key_of
from outlast.tests.service.test_owners import token_file
from outlast.tests.service.test_socket import connected, hear, heard, listen, refused
from outlast.tests.support.mcp import UNDECLARED, envelope
from outlast.tests.support.publishing import Publisher, publishing
from outlast.tests.support.serving import Serving, serving
from outlast.tests.support.streams import LISTEN, versions

pytestmark = pytest.mark.anyio

READ_S_MAX = 30.0
PARSE, INVALID_REQUEST, NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
MISSING_CAPABILITY = -32021


@pytest.fixture(scope="module")
async def server(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """A server that knows two owners and runs nothing."""
    folder = tmp_path_factory.mktemp("refusals")
    (folder / "tokens.toml").write_text(token_file(TOKENS))
    config = desk_config('tokens_file = "tokens.toml"')
    async with serving(folder, config, module_database_url, ["--no-work"]) as started:
        yield started


@pytest.fixture
def publisher(server: Serving) -> Iterator[Publisher]:
    with publishing(server.database_url) as own:
        yield own


# --- who gets in


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"uri": "ws://evil.example"}, 421),
        ({"token": None}, 401),
        ({"token": "wrong"}, 401),
    ],
    ids=str,
)
async def test_a_handshake_that_may_not_be_is_refused_with_its_status(
    server: Serving, how: dict[str, Any], status: int
):
    token, uri = how.get("token", ALICE), how.get("uri", "ws://127.0.0.1")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    port = urlsplit(server.base_url).port
    with pytest.raises(websockets.InvalidStatus) as refusal:
        await connect(
            f"{uri}:{port}/ws",
            host="127.0.0.1",
            origin=how.get("origin"),
            additional_headers=headers,
            proxy=None,
        )
    assert refusal.value.response.status_code == status
    if status == 401:
        assert refusal.value.response.headers["WWW-Authenticate"].startswith("Bearer")


async def test_a_page_of_this_machine_may_connect(server: Serving):
    async with connected(server, origin="http://localhost:3000") as connection:
        assert await refused(connection, "[]") == (None, INVALID_REQUEST)


# --- what may be said


def request(method: str, params: Mapping[str, Any], **changed: Any) -> str:
    return json.dumps({**envelope(method, params), "id": "r", **changed})


FILTER = {"notifications": {"taskIds": []}}
HOSTILE = {
    "no JSON": ("{", None, PARSE),
    "a batch": ("[]", None, INVALID_REQUEST),
    "a number": ("1", None, INVALID_REQUEST),
    "no method": ('{"jsonrpc":"2.0","id":"r"}', "r", INVALID_REQUEST),
    "an id that is none": ('{"jsonrpc":"2.0","id":{},"method":"x"}', None, INVALID_REQUEST),
    "too deep": (
        request(LISTEN, {"notifications": {}, "x": []}).replace("[]", "[" * 70 + "]" * 70),
        None,
        INVALID_REQUEST,
    ),
    "another method": (request("tools/list", {}), "r", NOT_FOUND),
    "a task method": (request("tasks/get", {"taskId": "x"}), "r", NOT_FOUND),
    "no envelope": (
        '{"jsonrpc":"2.0","id":"r","method":"subscriptions/listen"}',
        "r",
        INVALID_PARAMS,
    ),
    "no filter": (request(LISTEN, {}), "r", INVALID_PARAMS),
    "a filter that is none": (request(LISTEN, {"notifications": []}), "r", INVALID_PARAMS),
    "not declared": (
        json.dumps({**envelope(LISTEN, FILTER, UNDECLARED), "id": "r"}),
        "r",
        MISSING_CAPABILITY,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_message_that_cannot_be_served_is_answered_and_the_connection_lives(
    server: Serving, publisher: Publisher, name: str
):
    task_id = await publisher.opened(owner=key_of(ALICE))
    text, request_id, code = HOSTILE[name]
    async with connected(server) as connection:
        assert await refused(connection, text) == (request_id, code)
        await connection.send(text.encode())  # as a binary message
        assert (await heard(connection))["error"]["code"] == code
        await connection.send(listen("after", task_id))
        assert list(await hear(connection, 2)) == ["after"]
    assert "Traceback" not in server.log.read_text()


async def test_a_notification_is_never_answered(server: Serving):
    async with connected(server) as connection:
        for method in ("notifications/cancelled", "notifications/initialized", "nonsense"):
            await connection.send(json.dumps({"jsonrpc": "2.0", "method": method}))
        assert await refused(connection, "{") == (None, PARSE)


async def say(connection: ClientConnection, text: str) -> None:
    """Send, and hear the answer. The server may hang up before it has taken all of it."""
    await connection.send(text)
    await connection.recv()


async def test_a_message_that_is_too_large_closes_its_connection_alone(
    server: Serving, publisher: Publisher
):
    task_id = await publisher.opened(owner=key_of(ALICE))
    async with connected(server) as other, connected(server) as connection:
        await other.send(listen(1, task_id))
        await hear(other, 2)
        with anyio.fail_after(READ_S_MAX), pytest.raises(websockets.ConnectionClosed):
            await say(connection, " " * 5 * 2**20)
        await publisher.ends(task_id)
        assert versions((await hear(other, 2))[1]) == [3]
