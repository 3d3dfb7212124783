"""A person's request: after `outlast purge` nothing that its tasks held is left anywhere."""

import json
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from outlast.adapters import embedded_cluster
from outlast.tests.acceptance.waiting import until
from outlast.tests.service.test_at_rest import (
    World,
    answered,
    config_with,
    lives_of_all_kinds,
    opened,
)
from outlast.tests.service.test_owners import expire, token_file
from outlast.tests.support.mcp import RawClient
from outlast.tests.support.sealed import OLD

pytestmark = pytest.mark.anyio

ALICE, ALICE_ELSEWHERE, BOB = "alice-token-5c1e", "alice-elsewhere-77aa", "bob-token-31d0"
TOKENS = {ALICE: ("alice", "phone"), ALICE_ELSEWHERE: ("alice", "desk"), BOB: ("bob", "phone")}
BOBS_MARK = "mark-failure-6"  # what becomes of his word; nobody else's has six letters
MARK = re.compile(rb"mark-[a-z]+-[0-9]+")
HEX_MARK = re.compile(b"".join((b"mark-".hex().encode(), rb"(?:[0-9a-f]{2}){1,20}")))
WHY = "its owner's data were purged"
DUMP_S_MAX = 60.0
NOTHING, WRONG_USAGE = 1, 2


def marks(text: bytes) -> set[str]:
    """The marks of payloads in this text, also where it holds bytes as hexadecimal digits."""
    unfolded = b"\n".join(bytes.fromhex(found.decode()) for found in HEX_MARK.findall(text))
    return {mark.decode() for mark in MARK.findall(text + b"\n" + unfolded)}


async def dumped(world: World) -> bytes:
    """All of the database as `pg_dump` writes it."""
    program = shutil.which("pg_dump", path=str(embedded_cluster.find_programs()))
    assert program is not None, "the embedded server's programs bring pg_dump"
    with anyio.fail_after(DUMP_S_MAX):
        ran = await anyio.run_process([program, "--dbname", world.url], check=True)
    return ran.stdout


async def purged(world: World, *arguments: str, keys: str = "") -> tuple[int, str]:
    return await world.runs("purge", *arguments, "--yes", keys=keys)


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "tokens.toml").write_text(token_file(TOKENS))
    async with AsyncExitStack() as stack:
        yield World(tmp_path, database_url, stack)


def config(encrypt: str, server: str = "") -> str:
    text = config_with(OLD, encrypt=encrypt)
    return text.replace("[server]", f'[server]\ntokens_file = "tokens.toml"\n{server}', 1)


def holder(client: RawClient, token: str) -> RawClient:
    return RawClient(client.url, client.http, token)


def owners_of(world: World) -> list[str]:
    return [row[0] for row in world.sql("SELECT DISTINCT owner FROM outlast.task_view ORDER BY 1")]


async def forgotten(world: World, task_id: str) -> None:
    expire(world.url, task_id)

    async def is_past() -> bool:
        return bool(world.sql("SELECT 1 FROM outlast.past_tasks WHERE task_id = %s", task_id))

    await until(is_past, 60.0)


async def a_full_life(world: World, client: RawClient) -> tuple[list[str], str]:
    """Alice's tasks of every kind, one of them past, one that waits; and Bob's one."""
    alice, elsewhere = holder(client, ALICE), holder(client, ALICE_ELSEWHERE)
    ended = [task["taskId"] for task in await lives_of_all_kinds(alice, alice)]
    waiting = await opened(elsewhere, "keep", 4)
    await elsewhere.until_status(waiting, "input_required", seconds=30.0)
    past = await opened(elsewhere, "keep", 5)
    await answered(elsewhere, past)
    await elsewhere.until_status(past, seconds=30.0)
    await forgotten(world, past)
    bob = holder(client, BOB)
    bobs = (await bob.call("spoil", {"word": "of-bob"})).result["taskId"]
    await bob.until_status(bobs, seconds=30.0)
    return [*ended, waiting, past], bobs


@pytest.mark.promise("purge-leaves-no-payload")
@pytest.mark.parametrize("encrypt", ["on", "off"])
async def test_after_a_purge_no_payload_is_left_in_any_table_dump_or_log(
    world: World, encrypt: str
):
    client = await world.serves(config(encrypt))
    task_ids, bobs = await a_full_life(world, client)
    owners = [owner for owner in owners_of(world) if "alice" in owner]
    issuer = json.loads(owners[0])[0]
    before = world.dump() + await dumped(world)
    theirs = set() if encrypt == "on" else {BOBS_MARK}
    assert len(marks(before)) > len(theirs) or encrypt == "on"
    assert all(owner.encode() in world.dump() for owner in owners)
    bobs_rows = skeleton(world, [bobs])

    code, said = await purged(
        world, "--issuer", issuer, "--subject", "alice", keys=json.dumps([OLD])
    )
    assert code == 0, said
    assert "3 tasks (0 were under way), 0 past tasks" in said
    assert "1 tasks (1 were under way), 1 past tasks" in said
    await nothing_is_left(world, owners, theirs)
    log = b"".join(server.log.read_bytes() for server in world.servers)
    assert marks(log) == marks(said.encode()) == set()

    alice = holder(client, ALICE)
    for task_id in task_ids:
        refused = await alice.request("tasks/get", {"taskId": task_id})
        assert (refused.refusal, refused.error["message"]) == ((400, -32602), "Task not found.")
    assert skeleton(world, [bobs]) == bobs_rows
    assert (await holder(client, BOB).task(bobs))["status"] == "completed"
    the_log_says_when_and_why(world, task_ids)
    assert (await purged(world, "--issuer", issuer, "--subject", "alice"))[0] == NOTHING
    verified, told = await world.runs("audit", "verify", keys=json.dumps([OLD]))
    assert verified == 0, told


async def nothing_is_left(world: World, owners: Sequence[str], theirs: set[str]) -> None:
    """Neither payloads, but for what is another's, nor the owners' names."""
    for text in (world.dump(), await dumped(world)):
        assert marks(text) == theirs
        for owner in owners:
            assert owner.encode() not in text
            assert json.dumps(owner)[1:-1].encode() not in text


def skeleton(world: World, task_ids: Sequence[str]) -> list[tuple[object, ...]]:
    return world.sql(
        "SELECT originator_id, originator_version, topic, digest, state FROM outlast.task_events"
        " WHERE originator_id = ANY(%s) ORDER BY 1, 2",
        list(task_ids),
    )


def the_log_says_when_and_why(world: World, task_ids: Sequence[str]) -> None:
    rows = world.sql(
        "SELECT originator_id, convert_from(state, 'UTF8')::json ->> 'why',"
        " recorded_at = t.erased_at"
        " FROM outlast.past_events JOIN outlast.past_tasks t ON task_id = originator_id"
        " WHERE topic = 'task.erased' ORDER BY 1"
    )
    assert rows == [(task_id, WHY, True) for task_id in sorted(task_ids)]
    left = world.sql("SELECT topic, count(*) FROM outlast.past_events WHERE state <> '' GROUP BY 1")
    assert left == [("task.erased", len(task_ids))]
    assert world.sql("SELECT count(*) FROM outlast.past_events WHERE topic = 'task.opened'") == [
        (len(task_ids),)
    ]


async def test_a_purge_ends_what_runs_and_who_watches_is_told(world: World):
    client = await world.serves(config("on"))
    alice = holder(client, ALICE)
    task_id = await opened(alice, "keep")
    await alice.until_status(task_id, "input_required", seconds=30.0)
    (owner,) = owners_of(world)
    code, said = await purged(world, "--owner", owner.replace(",", ", "), keys=json.dumps([OLD]))
    assert (code, "1 were under way" in said) == (0, True), said
    # The service goes on, also for the same owner, whose next tasks are as good as ever.
    again = await opened(alice, "spoil", 2)
    assert (await alice.until_status(again, seconds=30.0))["status"] == "completed"
    code, said = await purged(world, "--owner", owner, keys=json.dumps([OLD]))
    assert (code, "1 tasks (0 were under way)" in said) == (0, True), said


async def test_when_the_audit_period_is_over_payloads_go_by_themselves(world: World):
    client = await world.serves(config("off", "audit_period_s = 0"))
    alice = holder(client, ALICE)
    task_id = await opened(alice, "spoil")
    await alice.until_status(task_id, seconds=30.0)
    assert marks(world.dump())
    await forgotten(world, task_id)

    async def is_erased() -> bool:
        return world.sql("SELECT erased_at IS NOT NULL FROM outlast.past_tasks") == [(True,)]

    await until(is_erased, 60.0)
    assert marks(world.dump() + await dumped(world)) == set()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--owner", '["","nobody","x"]'], NOTHING, "nothing is stored"),
        (["--issuer", "i", "--subject", "nobody"], NOTHING, "nothing is stored"),
        (["--owner", "alice"], WRONG_USAGE, "JSON list"),
        (["--subject", "alice"], WRONG_USAGE, "--issuer and --subject"),
        (["--owner", '["","a","b"]', "--client", "c"], WRONG_USAGE, "--issuer and --subject"),
        ([], WRONG_USAGE, "--issuer and --subject"),
    ],
)
async def test_a_purge_of_nobody_or_of_an_unclear_somebody_removes_nothing(
    world: World, arguments: list[str], code: int, told: str
):
    ran, said = await purged(world, *arguments)
    assert (ran, told in said) == (code, True), said


async def test_a_purge_that_is_not_confirmed_removes_nothing(world: World):
    client = await world.serves(config("off"))
    alice = holder(client, ALICE)
    task_id = await opened(alice, "spoil")
    await alice.until_status(task_id, seconds=30.0)
    (owner,) = owners_of(world)
    code, said = await world.runs("purge", "--owner", owner)
    assert (code, "Aborted" in said) == (1, True), said
    assert (await alice.task(task_id))["status"] == "completed"
