"""`/ws` from the outside: a real server, the `websockets` client, several watches on a connection.

The server runs no tasks: a publisher changes them in the store, as a worker elsewhere would.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from outlast.tests.acceptance.waiting import until
from outlast.tests.service.conftest import desk_config
from outlast.tests.service.test_listen import ALICE, BOB, TOKENS, key_of
from outlast.tests.service.test_owners import token_file
from outlast.tests.support.hasty import hasty
from outlast.tests.support.mcp import envelope
from outlast.tests.support.publishing import Publisher, publishing
from outlast.tests.support.serving import Serving, serving
from outlast.tests.support.streams import (
    ACKNOWLEDGED,
    AFTER,
    LISTEN,
    SUBSCRIPTION,
    states,
    versions,
)

pytestmark = pytest.mark.anyio

READ_S_MAX = 30.0
IDLE_S, PING_S = 5.0, 4.0  # little, and more than a busy machine takes to say or hear a word
PER_OWNER = 4
STOP_S_MAX = 15.0
GOING_AWAY = (1001, 1012)
NOTHING_WATCHED = 4408
PARSE, TOO_MANY, INVALID_PARAMS = -32700, -32603, -32602


@pytest.fixture(scope="module")
async def server(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serving]:
    """A server with few seats and little patience, which runs nothing."""
    folder = tmp_path_factory.mktemp("socket")
    (folder / "tokens.toml").write_text(token_file(TOKENS))
    config = desk_config(f'tokens_file = "tokens.toml"\nwatches_per_owner = {PER_OWNER}')
    flags, outlast = ["--no-work"], hasty(idle=IDLE_S, ping=PING_S)
    async with serving(folder, config, module_database_url, flags, outlast) as started:
        yield started


@pytest.fixture
def publisher(server: Serving) -> Iterator[Publisher]:
    with publishing(server.database_url) as own:
        yield own


def ws_url(server: Serving) -> str:
    return f"ws{server.base_url.removeprefix('http')}/ws"


def connected(
    server: Serving, token: str | None = ALICE, **how: Any
) -> AbstractAsyncContextManager[ClientConnection]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return connect(ws_url(server), additional_headers=headers, proxy=None, **how)


def listen(request_id: Any, *task_ids: str, meta: Mapping[str, Any] | None = None) -> str:
    body = envelope(LISTEN, {"notifications": {"taskIds": list(task_ids)}}, meta=meta)
    return json.dumps({**body, "id": request_id})


def cancel(request_id: Any) -> str:
    params = {"requestId": request_id}
    return json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


async def heard(connection: ClientConnection) -> dict[str, Any]:
    """The next message, which is text and one JSON object."""
    with anyio.fail_after(READ_S_MAX):
        text = await connection.recv()
    assert isinstance(text, str)
    return json.loads(text)


def subscription_of(message: Mapping[str, Any]) -> Any:
    return (message.get("params") or message["result"])["_meta"][SUBSCRIPTION]


async def hear(connection: ClientConnection, count: int) -> dict[Any, list[dict[str, Any]]]:
    """The next so many messages, by the watch that they belong to."""
    by_watch: dict[Any, list[dict[str, Any]]] = {}
    for _ in range(count):
        message = await heard(connection)
        by_watch.setdefault(subscription_of(message), []).append(message)
    return by_watch


async def refused(connection: ClientConnection, text: str) -> tuple[Any, int]:
    """The id and the code of the error that this message is answered with."""
    await connection.send(text)
    answer = await heard(connection)
    return answer.get("id"), answer["error"]["code"]


async def test_several_watches_share_one_connection_and_each_keeps_its_order(
    server: Serving, publisher: Publisher
):
    task_ids = [await publisher.opened(owner=key_of(ALICE)) for _ in range(3)]
    names = ["one", 2, 0]
    async with connected(server) as connection:
        for name, task_id in zip(names, task_ids, strict=True):
            await connection.send(listen(name, task_id))
        told = await hear(connection, 2 * len(names))
        for step in range(3):
            for task_id in task_ids:
                await publisher.progresses(task_id, step=step)
        for task_id in task_ids:
            await publisher.ends(task_id)
        later = await hear(connection, 5 * len(names))
    for name, task_id in zip(names, task_ids, strict=True):
        acknowledged, *rest = told[name] + later[name]
        assert acknowledged["method"] == ACKNOWLEDGED
        assert acknowledged["params"]["notifications"] == {"taskIds": [task_id]}
        assert versions(rest) == [2, 3, 4, 5, 6]
        assert {state["taskId"] for state in states(rest)} == {task_id}
        assert rest[-1]["id"] == name
        assert type(rest[-1]["id"]) is type(name)
        assert rest[-1]["result"] == {
            "resultType": "complete",
            "_meta": {SUBSCRIPTION: name},
        }


async def test_a_watch_that_is_cancelled_falls_silent_and_its_id_is_free_again(
    server: Serving, publisher: Publisher
):
    first, second = [await publisher.opened(owner=key_of(ALICE)) for _ in range(2)]
    async with connected(server) as connection:
        await connection.send(listen("a", first))
        await connection.send(listen("b", second))
        await hear(connection, 4)
        await connection.send(cancel("nobody"))
        await connection.send(cancel([1]))
        await connection.send(cancel("a"))
        # Answered after the cancel was heard, so what follows comes later still.
        assert await refused(connection, "{") == (None, PARSE)
        await publisher.progresses(first)
        await publisher.progresses(second)
        message = await heard(connection)
        assert (subscription_of(message), versions([message])) == ("b", [3])
        await connection.send(listen("a", first, meta={AFTER: {first: 2}}))
        told = await hear(connection, 2)
        assert versions(told["a"]) == [3]


async def test_a_watch_goes_on_after_the_version_that_its_client_knows(
    server: Serving, publisher: Publisher
):
    task_id = await publisher.opened(owner=key_of(ALICE))
    async with connected(server) as connection:
        await connection.send(listen(1, task_id))
        await hear(connection, 2)
    for step in range(3):
        await publisher.progresses(task_id, step=step)
    await publisher.ends(task_id)
    async with connected(server) as connection:
        await connection.send(listen(1, task_id, meta={AFTER: {task_id: 3}}))
        told = await hear(connection, 5)
    assert versions(told[1]) == [4, 5, 6]


async def quiet(connection: ClientConnection, seconds: float) -> None:
    """Hear nothing for so long, on a connection that stays."""
    with anyio.move_on_after(seconds):
        raise AssertionError(await connection.recv())


async def test_a_client_that_answers_pings_and_watches_stays_for_as_long_as_it_likes(
    server: Serving, publisher: Publisher
):
    task_id = await publisher.opened(owner=key_of(ALICE))
    async with connected(server, ping_interval=None) as connection:
        with anyio.fail_after(READ_S_MAX):
            await (await connection.ping())
        await connection.send(listen(1, task_id))
        await hear(connection, 2)
        await quiet(connection, max(2.5 * PING_S, 1.5 * IDLE_S))
        await publisher.ends(task_id)
        assert versions((await hear(connection, 2))[1]) == [3]


async def test_a_client_that_answers_no_ping_is_given_up_and_leaves_its_seats(
    server: Serving, publisher: Publisher
):
    task_id = await publisher.opened(owner=key_of(ALICE))
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.base_url).port)
    try:
        writer.write(
            f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {ALICE}\r\n"
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        with anyio.fail_after(READ_S_MAX):
            # Only then: what a client sends before the handshake is over belongs to nobody.
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            for number in range(PER_OWNER):
                writer.write(masked(listen(number, task_id)))
            await reader.read()
    finally:
        writer.transport.abort()
    async with connected(server) as connection:
        await until_a_seat_is_free(connection, task_id)


def masked(text: str) -> bytes:
    """One text frame of a client, under the mask of zeros."""
    payload = text.encode()
    return b"\x81\xfe" + len(payload).to_bytes(2, "big") + bytes(4) + payload


async def until_a_seat_is_free(connection: ClientConnection, task_id: str) -> None:
    async def is_free() -> bool:
        await connection.send(listen("seat", task_id))
        return "error" not in await heard(connection)

    await until(is_free, READ_S_MAX)


async def test_a_connection_on_which_nothing_is_watched_is_closed_after_a_while(
    server: Serving, publisher: Publisher
):
    task_id = await publisher.opened(owner=key_of(ALICE))
    await publisher.ends(task_id)
    async with connected(server) as unused, connected(server) as used:
        await used.send(listen(1, task_id))
        await hear(used, 3)
        for connection in (unused, used):
            with anyio.fail_after(IDLE_S + READ_S_MAX), pytest.raises(websockets.ConnectionClosed):
                await connection.recv()
            assert connection.close_code == NOTHING_WATCHED


@pytest.mark.promise("watchers-see-only-their-own")
async def test_nothing_of_another_owner_is_agreed_to_or_told(server: Serving, publisher: Publisher):
    own, foreign = [await publisher.opened(owner=key_of(t)) for t in (ALICE, BOB)]
    async with connected(server) as connection:
        await connection.send(listen(1, foreign, own, "x" * 43))
        acknowledged, _ = (await hear(connection, 2))[1]
        assert acknowledged["params"]["notifications"] == {"taskIds": [own]}
        await publisher.ends(foreign)
        await publisher.ends(own)
        told = (await hear(connection, 2))[1]
    assert [state["taskId"] for state in states(told)] == [own]


async def test_too_many_watches_are_refused_one_by_one(server: Serving, publisher: Publisher):
    task_id = await publisher.opened(owner=key_of(ALICE))
    async with connected(server) as connection:
        for number in range(PER_OWNER):
            await connection.send(listen(number, task_id))
        await hear(connection, 2 * PER_OWNER)
        assert await refused(connection, listen("more", task_id)) == ("more", TOO_MANY)
        assert await refused(connection, listen(0, task_id)) == (0, INVALID_PARAMS)
        await connection.send(cancel(0))
        await connection.send(listen("more", task_id))
        assert list(await hear(connection, 2)) == ["more"]


# --- the end of the process


@pytest.mark.promise("listen-speaks-the-specification")
async def test_on_sigterm_every_watch_gets_its_result_and_the_connection_closes(
    database_url: str, tmp_path: Path
):
    async with serving(tmp_path, desk_config(), database_url, ["--no-work"]) as server:
        with publishing(database_url) as publisher:
            task_ids = [await publisher.opened() for _ in range(3)]
        async with connected(server, None) as connection, connected(server, None) as unused:
            for task_id in task_ids:
                await connection.send(listen(task_id, task_id))
            await hear(connection, 2 * len(task_ids))
            server.process.terminate()
            told = await hear(connection, len(task_ids))
            assert sorted(told) == sorted(task_ids)
            assert [m["result"]["resultType"] for [m] in told.values()] == ["complete"] * 3
            for ending in (connection, unused):
                with anyio.fail_after(STOP_S_MAX), pytest.raises(websockets.ConnectionClosed):
                    await ending.recv()
                assert ending.close_code in GOING_AWAY
            with anyio.fail_after(STOP_S_MAX):
                assert await server.process.wait() == 0
