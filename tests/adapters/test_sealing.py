"""What is sealed opens in its own place, with its own key, and nowhere else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import pytest

from outlast.adapters import codec
from outlast.adapters.sealing import SEALED, LocalWrapping, Sealer
from outlast.adapters.task_view import PostgresTaskViews
from outlast.delivery.feed import Feed
from outlast.domain import errors
from outlast.domain.events import TaskOpened
from outlast.tests.adapters.sealing_world import Replica, World
from outlast.tests.contracts.outbox_world import rig
from outlast.tests.contracts.stores import happens, open_task, progresses
from outlast.tests.domain.given import OPENED
from outlast.tests.support.sealed import NEW, OLD

pytestmark = pytest.mark.anyio

OWNER = OPENED.owner


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(database_url, stack)


@pytest.fixture
async def one(world: World) -> Replica:
    return await world.replica(OLD)


# --- what is stored


async def test_all_rows_of_a_sealed_task_are_sealed_and_every_process_with_the_key_reads_them(
    world: World, one: Replica
):
    task = await one.started("t")
    for _, _, state, _ in world.states():
        assert state.startswith(SEALED)
    ((wire,),) = world.sql("SELECT wire FROM outlast.task_view")
    assert wire.startswith(SEALED)
    other = await world.replica(NEW, OLD)
    assert await other.log.read("t") == await one.log.read("t")
    assert await other.views.get("t") == await one.views.get("t")
    task = await happens(other.log, task, progresses())
    assert len(await one.log.read("t")) == task.version


async def test_the_same_payload_is_never_stored_as_the_same_bytes(world: World, one: Replica):
    await one.started("t")
    await one.started("u")
    states = [state for _, _, state, _ in world.states()]
    assert len(set(states)) == len(states) == 4


@pytest.mark.parametrize("turned", ["on", "off"])
async def test_plain_and_sealed_tasks_lie_in_one_log_and_each_stays_as_it_was_opened(
    world: World, turned: str
):
    before = await world.replica(OLD, seals=turned == "off")
    after = await world.replica(OLD, seals=turned == "on")
    old = await before.started("old")
    new = await after.started("new")
    await happens(after.log, old, progresses())
    await happens(before.log, new, progresses())
    sealed = {"on": "new", "off": "old"}[turned]
    for task_id, _, state, _ in world.states():
        assert state.startswith(SEALED) == (task_id == sealed)
    for task_id in ("old", "new"):
        assert len(await before.log.read(task_id)) == 3
        assert await before.views.get(task_id) == await after.views.get(task_id)


async def test_a_process_without_keys_still_serves_what_is_plain(world: World, one: Replica):
    await one.started("sealed")
    bare = await world.replica()
    await bare.started("plain")
    await bare.cannot_read("sealed", errors.KeyMissing)
    assert await bare.views.get("plain") == await one.views.get("plain")


# --- in its own place only


@pytest.mark.promise("a-payload-opens-in-its-own-place")
@pytest.mark.parametrize(
    ("source", "target"),
    [(("t", 3), ("t", 4)), (("t", 3), ("u", 3)), (("t", 2), ("t", 3)), (("u", 1), ("t", 1))],
    ids=["another version", "another task", "another topic", "another opening"],
)
async def test_a_payload_that_was_moved_to_another_event_does_not_open(
    world: World, one: Replica, source: tuple[str, int], target: tuple[str, int]
):
    for task_id in ("t", "u"):
        await happens(one.log, await one.started(task_id), progresses(), progresses())
    world.moves_event(source, target)
    other = await world.replica(OLD)
    for replica in (one, other):
        with pytest.raises(errors.PayloadDamaged):
            await replica.log.read(target[0])
        untouched = {"t": "u", "u": "t"}[target[0]]
        assert len(await replica.log.read(untouched)) == 4


async def test_a_payload_whose_event_was_given_another_topic_does_not_open(
    world: World, one: Replica
):
    await happens(one.log, await one.started("t"), progresses())
    world.sql(
        "UPDATE outlast.task_events SET topic = 'task.completed' WHERE originator_version = 3"
    )
    with pytest.raises(errors.PayloadDamaged):
        await one.log.read("t")


@pytest.mark.parametrize(
    "by_hand",
    [
        "wire = (SELECT wire FROM outlast.task_view WHERE task_id = 'u')",
        "version = version - 1",
        "wire = (SELECT state FROM outlast.task_events WHERE originator_id = 't'"
        " AND originator_version = 2)",
        "wire = set_byte(wire, 20, get_byte(wire, 20) # 1)",
        "wire = substr(wire, 1, 5)",
        """wire = '{"status": "completed"}'""",
    ],
    ids=["another's", "an older version", "an event's", "a flipped bit", "cut", "plain"],
)
async def test_a_view_row_that_was_changed_by_hand_does_not_open(
    world: World, one: Replica, by_hand: str
):
    await one.started("t")
    await one.started("u")
    world.sql(f"UPDATE outlast.task_view SET {by_hand} WHERE task_id = 't'")
    with pytest.raises(errors.PayloadDamaged):
        await one.views.get("t")
    assert await one.views.get("u") is not None


async def test_a_data_key_of_another_task_does_not_unwrap(world: World, one: Replica):
    await one.started("t")
    await one.started("u")
    world.sql(
        "UPDATE outlast.data_keys SET wrapped ="
        " (SELECT wrapped FROM outlast.data_keys WHERE task_id = 'u') WHERE task_id = 't'"
    )
    other = await world.replica(OLD)
    await other.cannot_read("t", errors.PayloadDamaged)
    assert await other.views.get("u") is not None


async def test_rows_and_key_of_one_task_do_not_open_as_another_one(world: World, one: Replica):
    """Each of the two is bound to the task, so that neither can lend itself to it."""
    made = await one.sealer.new_key("t")
    assert made is not None
    with pytest.raises(errors.PayloadDamaged):
        await one.sealer.unwrap("u", made.wrapped, made.wrapped_by)
    stored = one.sealer.seal(made.key, "t", 1, "task.opened", b"{}")
    assert one.sealer.open(made.key, "t", 1, "task.opened", stored) == b"{}"
    with pytest.raises(errors.PayloadDamaged):
        one.sealer.open(made.key, "u", 1, "task.opened", stored)
    await one.started("t")
    await one.started("u")
    world.sql(
        "UPDATE outlast.data_keys SET wrapped ="
        " (SELECT wrapped FROM outlast.data_keys WHERE task_id = 't') WHERE task_id = 'u'"
    )
    world.sql(
        "UPDATE outlast.task_view SET wire ="
        " (SELECT wire FROM outlast.task_view WHERE task_id = 't') WHERE task_id = 'u'"
    )
    other = await world.replica(OLD)
    await other.cannot_read("u", errors.PayloadDamaged)


# --- keys that are gone


async def test_without_its_data_key_a_task_is_erased_and_the_others_are_not(
    world: World, one: Replica
):
    await one.started("t")
    await one.started("u")
    rows = world.sql("DELETE FROM outlast.data_keys WHERE task_id = 't' RETURNING *")
    other = await world.replica(OLD)
    await other.cannot_read("t", errors.PayloadErased)
    assert len(await other.log.read("u")) == 2
    world.sql("INSERT INTO outlast.data_keys VALUES (%s, %s, %s)", *rows[0])
    assert len(await other.log.read("t")) == 2


async def test_a_task_under_a_key_that_is_not_set_says_which_and_shows_no_key(
    world: World, one: Replica
):
    await one.started("t")
    other = await world.replica(NEW)
    with pytest.raises(errors.KeyMissing, match="data_keys") as caught:
        await other.views.get("t")
    assert (caught.value.task_id, caught.value.key_name) == ("t", "old")
    await other.cannot_read("t", errors.KeyMissing)
    impostor = await world.replica(f"old:{NEW.partition(':')[2]}")
    await impostor.cannot_read("t", errors.PayloadDamaged)


async def test_another_owner_cannot_tell_a_task_that_does_not_open_from_none(
    world: World, one: Replica
):
    await one.started("t")
    other = await world.replica(NEW)
    assert await other.views.get("t", "somebody else") is None
    feed = Feed(other.views, other.log, codec.wire_of, lambda: datetime.now(UTC))
    assert await feed.owned("somebody else", "t") is None
    with pytest.raises(errors.KeyMissing):
        await other.views.get("t", OWNER)


async def test_what_is_forgotten_leaves_the_memory_of_its_key(one: Replica, world: World):
    other = await world.replica(OLD)
    await one.started("t")
    await other.views.get("t")
    assert [each.sealer.knows("t") for each in (one, other)] == [True, True]
    await one.views.forget(["t"])
    assert await other.views.get("t") is None
    assert [each.sealer.knows("t") for each in (one, other)] == [False, False]


async def test_few_keys_are_remembered_at_a_time(world: World):
    made = await world.replica(OLD)
    small = Sealer(made.database, LocalWrapping([OLD]), most=2)
    views = PostgresTaskViews(made.database, small)
    for task_id in "abc":
        await made.started(task_id)
        assert await views.get(task_id) is not None
    assert [small.knows(task_id) for task_id in "abc"] == [False, True, True]
    assert await views.get("a") is not None


async def test_a_view_is_read_with_one_statement_whether_the_key_is_known_or_not(world: World):
    one, other, bare = [await world.replica(*keys) for keys in ([OLD], [OLD], [])]
    await one.started("sealed")
    await bare.started("plain")
    for task_id in ("sealed", "plain", "sealed", "plain", "unknown"):
        before = other.database.count
        await other.views.get(task_id, OWNER)
        assert other.database.count == before + 1
        await other.log.read(task_id)
        assert other.database.count == before + 2


async def test_that_a_task_is_plain_is_not_concluded_before_it_is_there(world: World):
    one, other = await world.replica(OLD), await world.replica(OLD)
    assert await other.sealer.key_of("t") is None
    task = await one.started("t")
    await happens(other.log, task, progresses())
    assert all(state.startswith(SEALED) for _, _, state, _ in world.states())


# --- names


async def test_an_idempotency_key_cannot_be_guessed_from_what_is_stored(world: World):
    plain, one, other = [await world.replica(*keys) for keys in ([], [OLD], [NEW, OLD])]
    await open_task(plain.log, "before", idempotency_key="nightly")
    await open_task(one.log, "after", idempotency_key="deploy")
    ((told,),) = world.sql("SELECT idempotency_key FROM outlast.task_view WHERE task_id = 'after'")
    assert told not in {await plain.sealer.stored_name(name) for name in ("deploy", "nightly")}
    for name, task_id in (("nightly", "before"), ("deploy", "after")):
        found = await other.views.opened_with(OWNER, name)
        assert found is not None
        assert found.task_id == task_id
    with pytest.raises(errors.DuplicateOpening):
        await open_task(other.log, "again", idempotency_key="deploy")


async def test_processes_that_begin_together_agree_on_one_key_of_names(world: World):
    replicas = [await world.replica(OLD) for _ in range(4)]
    names = await asyncio.gather(*(each.sealer.stored_name("same") for each in replicas))
    assert len(set(names)) == 1


async def test_no_digest_of_arguments_is_stored_beside_the_payload(world: World, one: Replica):
    await open_task(one.log, "t", call_digest="a digest")
    assert world.sql("SELECT call_digest FROM outlast.task_view") == [(None,)]
    opening = (await one.log.read("t"))[0]
    assert isinstance(opening, TaskOpened)
    assert opening.call_digest == "a digest"


# --- the outbox, and what is said


async def test_a_delivery_that_does_not_open_holds_no_other_one_back(module_database_url: str):
    async with rig(module_database_url, seals=True) as made:
        await made.subscribes()
        good, bad = await made.opened(), await made.opened()
        await made.sql("DELETE FROM outlast.data_keys WHERE task_id = %s", bad)
        made.one.sealer.drop([good, bad])
        claimed = {due.task_id: due for due in await made.claims()}
        assert claimed[bad].present is None
        view = await made.one.views.get(good)
        assert view is not None
        assert claimed[good].present == (1, view.wire)


@pytest.mark.parametrize(
    "line",
    ["", "secret", "a:secret", f"a b:{'s' * 43}", f"a:{'s' * 42}", f"a:{'s' * 44}", OLD * 2],
    ids=["nothing", "no-name", "short", "space", "too-short", "too-long", "two"],
)
def test_what_is_no_key_is_refused_and_not_shown(line: str):
    with pytest.raises(errors.ConfigurationError) as caught:
        LocalWrapping([line])
    assert "sss" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("lines", [[], [OLD, OLD]])
def test_there_is_a_key_and_each_name_is_one_key(lines: list[str]):
    with pytest.raises(errors.ConfigurationError, match="only once"):
        LocalWrapping(lines)


async def test_a_key_is_in_no_word_that_could_be_logged(one: Replica):
    made = await one.sealer.new_key("t")
    assert made is not None
    assert made.key.hex() not in repr(made)
    assert repr(made.key)[2:-1] not in repr(made)
