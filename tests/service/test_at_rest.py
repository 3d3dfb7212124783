"""The real service with data keys: what lies in the store, and what is said when a key is lost."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
from psycopg import sql

from outlast.tests.acceptance.waiting import until
from outlast.tests.support.mcp import IDEMPOTENCY_KEY, RawClient, http_client
from outlast.tests.support.sealed import NEW, OLD
from outlast.tests.support.serving import OUTLAST, Serving, command_of, serving

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent
INTERNAL_ERROR, INVALID_PARAMS = -32603, -32602
ENDED_S_MAX = 30.0
MARK = re.compile(rb"mark-([a-z]+)")
KINDS = {"argument", "question", "answer", "progress", "result", "error", "data", "failure", "name"}


def config_with(*keys: str, encrypt: str = "auto") -> str:
    """The secretive server behind a service with these keys."""
    return "\n".join(
        [
            "[server]",
            f"data_keys = {list(keys)}",
            f'encrypt = "{encrypt}"',
            'log_level = "debug"',
            "[defaults]",
            'run = "task"',
            'poll_interval = "50ms"',
            'ttl = "10m"',
            "[upstreams.secrets]",
            f"command = {command_of(HERE / 'secretive_server.py')}",
        ]
    )


class World:
    """Replicas on one database, each with a client."""

    def __init__(self, folder: Path, url: str, stack: AsyncExitStack) -> None:
        self.folder, self.url, self._stack = folder, url, stack
        self.servers: list[Serving] = []

    async def serves(self, config: str, *flags: str) -> RawClient:
        """One more replica."""
        server = await self._stack.enter_async_context(
            serving(self.folder, config, self.url, flags)
        )
        self.servers.append(server)
        return RawClient(server.url, await self._stack.enter_async_context(http_client()))

    def dump(self) -> bytes:
        """Every column of every table: as it is where it is bytes, else as text."""
        with psycopg.connect(self.url) as connection:
            columns = connection.execute(
                "SELECT table_name, column_name, data_type FROM information_schema.columns"
                " WHERE table_schema = 'outlast'"
            ).fetchall()
            assert len(columns) > 50
            return b"\n".join(_column(connection, *each) for each in columns)

    def sql(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), params)
            return cursor.fetchall() if cursor.description else []

    async def runs(self, *arguments: str, keys: str = "") -> tuple[int, str]:
        """An `outlast` command beside the service: its exit code, and what it says."""
        env = os.environ | {"OUTLAST_DATABASE_URL": self.url, "OUTLAST_DATA_KEYS": keys}
        with anyio.fail_after(ENDED_S_MAX):
            ran = await anyio.run_process([str(OUTLAST), *arguments], env=env, check=False)
        return ran.returncode, (ran.stdout + ran.stderr).decode()


def _column(connection: psycopg.Connection[Any], table: str, column: str, kind: str) -> bytes:
    cast = sql.SQL("" if kind == "bytea" else "::text")
    statement = sql.SQL("SELECT {}{} FROM outlast.{}").format(
        sql.Identifier(column), cast, sql.Identifier(table)
    )
    found = [value for (value,) in connection.execute(statement) if value is not None]
    return b"\n".join(each.encode() if isinstance(each, str) else bytes(each) for each in found)


def marks(text: bytes) -> set[str]:
    """Which kinds of payload show in this."""
    return {kind.decode() for kind in MARK.findall(text)}


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(tmp_path, database_url, stack)


async def opened(client: RawClient, tool: str = "keep", number: int = 1) -> str:
    """A task with marked arguments, under an idempotency key."""
    created = await client.call(
        tool, {"word": f"mark-argument-{number}"}, meta={IDEMPOTENCY_KEY: f"mark-name-{number}"}
    )
    assert created.result["resultType"] == "task", created.result
    return created.result["taskId"]


async def answered(client: RawClient, task_id: str) -> None:
    """The task's question, answered with a marked word."""
    task = await client.until_status(task_id, "input_required", seconds=ENDED_S_MAX)
    (key,) = task["inputRequests"]
    answer = {"action": "accept", "content": {"name": "mark-answer-1"}}
    params = {"taskId": task_id, "inputResponses": {key: answer}}
    assert "error" not in (await client.request("tasks/update", params)).body


async def lives_of_all_kinds(one: RawClient, other: RawClient) -> list[dict[str, Any]]:
    """Three tasks, opened here, answered and read there, until they have ended."""
    ids = [await opened(one, tool, n) for n, tool in enumerate(("keep", "lose", "spoil"), 1)]
    await answered(other, ids[0])
    return [await other.until_status(task_id, seconds=ENDED_S_MAX) for task_id in ids]


# --- nothing readable


@pytest.mark.promise("payloads-are-sealed-at-rest")
@pytest.mark.parametrize("encrypt", ["on", "off"])
async def test_no_table_holds_a_word_of_a_payload_while_tasks_run_or_after(
    world: World, encrypt: str
):
    config = config_with(OLD, encrypt=encrypt)
    one, other = await world.serves(config), await world.serves(config)
    seen: set[str] = set()
    is_over = asyncio.Event()

    async def watches() -> None:
        while not is_over.is_set():
            seen.update(marks(await asyncio.to_thread(world.dump)))

    watching = asyncio.create_task(watches())
    try:
        tasks = await lives_of_all_kinds(one, other)
    finally:
        is_over.set()
        await watching
    assert [task["status"] for task in tasks] == ["completed", "failed", "completed"]
    assert tasks[0]["result"]["content"][0]["text"] == "mark-result-1 mark-answer-1"
    assert tasks[1]["error"]["data"] == {"why": "mark-data-1"}
    seen |= marks(world.dump())
    # Turned off, the same search finds every kind of them: it would find them here, too.
    assert seen == (set() if encrypt == "on" else KINDS)
    for server in world.servers:
        assert marks(server.log.read_bytes()) == set()


@pytest.mark.promise("payloads-are-sealed-at-rest")
async def test_what_is_forgotten_and_archived_is_as_unreadable_as_before(world: World):
    client = await world.serves(config_with(OLD))
    await lives_of_all_kinds(client, client)
    world.sql("UPDATE outlast.task_view SET expires_at = now()")

    async def are_archived() -> bool:
        return world.sql("SELECT count(*) FROM outlast.past_tasks") == [(3,)]

    await until(are_archived, ENDED_S_MAX)
    assert world.sql("SELECT count(*) FROM outlast.task_view") == [(0,)]
    assert world.sql("SELECT 1 FROM outlast.past_events LIMIT 1")
    assert marks(world.dump()) == set()


async def test_sealing_is_turned_on_while_plain_tasks_are_under_way(world: World):
    before = await world.serves(config_with(OLD, encrypt="off"))
    old = await opened(before, number=1)
    after = await world.serves(config_with(OLD))
    new = await opened(after, number=2)
    assert await opened(after, number=1) == old
    assert await opened(before, number=2) == new
    for task_id, client in ((old, after), (new, before)):
        await answered(client, task_id)
    for task_id in (old, new):
        for client in (before, after):
            task = await client.until_status(task_id, seconds=ENDED_S_MAX)
            assert task["status"] == "completed"


# --- a key that is not there


@pytest.mark.promise("a-lost-key-fails-closed")
async def test_a_task_whose_key_is_gone_is_an_error_and_all_else_goes_on(world: World):
    one = await world.serves(config_with(OLD))
    lost, kept = await opened(one, number=1), await opened(one, number=2)
    for task_id in (lost, kept):
        await one.until_status(task_id, "input_required", seconds=ENDED_S_MAX)
    world.sql("DELETE FROM outlast.data_keys WHERE task_id = %s", lost)
    other = await world.serves(config_with(OLD))
    for method in ("tasks/get", "tasks/cancel", "tasks/update"):
        more = {"inputResponses": {"x": {"action": "decline"}}} if "update" in method else {}
        reply = await other.request(method, {"taskId": lost, **more})
        assert reply.refusal == (200, INTERNAL_ERROR), reply.body
        assert "erased" in reply.error["message"]
    unknown = await other.request("tasks/get", {"taskId": "unknown"})
    assert unknown.error["code"] == INVALID_PARAMS
    await answered(other, kept)
    task = await other.until_status(kept, seconds=ENDED_S_MAX)
    assert task["status"] == "completed"
    log = world.servers[1].log.read_text()
    assert lost in log
    assert "Traceback" not in log


@pytest.mark.promise("a-lost-key-fails-closed")
async def test_a_replica_with_other_keys_serves_its_own_tasks_and_says_which_key_it_lacks(
    world: World,
):
    one = await world.serves(config_with(OLD), "--no-work")
    stranger = await world.serves(config_with(NEW))
    foreign = await opened(one, number=1)
    own = await stranger.opened("keep", {"word": "mark-argument-2"})
    # It cannot know whether this name was used before, so it does not risk to run a call twice.
    named = await stranger.call("keep", {"word": "w"}, meta={IDEMPOTENCY_KEY: "mark-name-2"})
    assert named.refusal == (200, INTERNAL_ERROR), named.body
    reply = await stranger.request("tasks/get", {"taskId": foreign})
    assert reply.refusal == (200, INTERNAL_ERROR), reply.body
    assert "data_keys" in reply.error["message"]
    await answered(stranger, own)
    task = await stranger.until_status(own, seconds=ENDED_S_MAX)
    assert task["status"] == "completed"
    log = world.servers[1].log.read_text()
    assert "(old)" in log
    for line in (OLD, NEW):
        assert line.partition(":")[2] not in log + world.servers[0].log.read_text()


# --- the command


@pytest.mark.promise("rotation-rewrites-no-event")
async def test_keys_are_made_rotated_and_counted_beside_running_services(world: World):
    code, made = await world.runs("keys", "new", "--name", "fresh")
    assert code == 0
    fresh = made.strip()
    assert re.fullmatch(r"fresh:[A-Za-z0-9_-]{43}", fresh)
    one = await world.serves(config_with(OLD, fresh))
    task_id = await opened(one)
    await one.until_status(task_id, "input_required", seconds=ENDED_S_MAX)
    states = "SELECT notification_id, state FROM outlast.task_events ORDER BY 1"
    events = world.sql(states)

    both = f"{fresh}, {OLD}"
    assert await world.runs("keys", "status", keys=both) == (
        0,
        "fresh\tcurrent\t0\nold\tformer\t2\n",
    )
    assert await world.runs("keys", "rotate", keys=fresh) == (
        1,
        "0 data keys are now under fresh\noutlast: 2 data keys do not open with the data_keys that"
        " are set; they are as they were, and `outlast keys status` says what they are under\n",
    )
    assert await world.runs("keys", "rotate", keys=both) == (
        0,
        "2 data keys are now under fresh\n",
    )
    assert await world.runs("keys", "status", keys=fresh) == (0, "fresh\tcurrent\t2\n")
    assert world.sql(states) == events

    other = await world.serves(config_with(fresh))
    assert await opened(other) == task_id
    await answered(other, task_id)
    for client in (one, other):
        task = await client.until_status(task_id, seconds=ENDED_S_MAX)
        assert task["status"] == "completed"


async def test_without_keys_there_is_nothing_to_rotate_to(world: World):
    code, said = await world.runs("keys", "rotate")
    assert (code, said) == (2, "outlast: there are no data_keys to rotate to\n")
    code, said = await world.runs("keys", "status", keys="nobody:knows this")
    assert code == 2
    assert "knows" not in said
