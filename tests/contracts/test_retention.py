"""The promise of `PastTasks` and `OwnedData`: what is erased is gone, once, and nothing else is."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from outlast.domain.owner import Owner
from outlast.tests.contracts.stores import Ports, happens, open_task
from outlast.tests.domain.given import completes, starts

pytestmark = [pytest.mark.anyio, pytest.mark.promise("twins-keep-the-same-contract")]

ANN = Owner("https://id.example", "ann", "phone").key
ANN_ELSEWHERE = Owner("https://id.example", "ann", "desk").key
ANNA = Owner("https://id.example", 'ann","a', "phone").key
BOB = Owner("https://id.example", "bob", "phone").key


def later(**time: float) -> datetime:
    return datetime.now(UTC) + timedelta(**time)


async def past_task(ports: Ports, task_id: str, owner: str = ANN) -> str:
    task = await open_task(ports.log, task_id, owner=owner)
    await happens(ports.log, task, starts(), completes())
    await ports.views.forget([task_id])
    return task_id


async def test_what_was_forgotten_waits_for_its_erasure_oldest_first(ports: Ports) -> None:
    await open_task(ports.log, "present", owner=ANN)
    for task_id in ("first", "second", "third"):
        await past_task(ports, task_id)
    assert list(await ports.past.to_erase(later(hours=-1), 10)) == []
    assert list(await ports.past.to_erase(later(hours=1), 10)) == ["first", "second", "third"]
    assert list(await ports.past.to_erase(later(hours=1), 2)) == ["first", "second"]


async def test_a_task_is_erased_once_and_no_other_is_touched(ports: Ports) -> None:
    await open_task(ports.log, "present", owner=ANN)
    for task_id in ("erased", "kept"):
        await past_task(ports, task_id)
    assert await ports.past.erase(["erased", "present", "unknown", "erased"], "test") == 1
    assert await ports.past.erase(["erased"], "test") == 0
    assert await ports.past.erase([], "test") == 0
    assert list(await ports.past.to_erase(later(hours=1), 10)) == ["kept"]
    assert len(await ports.log.read("present")) == 1
    assert await ports.views.get("present") is not None


async def test_two_who_erase_at_once_erase_each_task_once(ports: Ports) -> None:
    task_ids = [await past_task(ports, f"task-{number}") for number in range(20)]
    erasing = [ports.past.erase(order, "test") for order in (task_ids, task_ids[::-1]) * 3]
    assert sum(await asyncio.gather(*erasing)) == len(task_ids)


async def test_owners_are_found_by_issuer_and_subject_with_every_client(ports: Ports) -> None:
    await open_task(ports.log, "1", owner=ANN)
    await past_task(ports, "2", ANN_ELSEWHERE)
    await open_task(ports.log, "3", owner=BOB)
    await open_task(ports.log, "4", owner=ANNA)
    assert list(await ports.owned.owners("https://id.example", "ann", None)) == [
        *sorted([ANN, ANN_ELSEWHERE])
    ]
    assert list(await ports.owned.owners("https://id.example", "ann", "desk")) == [ANN_ELSEWHERE]
    for issuer, subject in (("https://id.example", "an"), ("https://id", "ann"), ("", "")):
        assert list(await ports.owned.owners(issuer, subject, None)) == []


async def test_an_owner_is_known_by_hash_alone_once_all_is_erased(ports: Ports) -> None:
    for task_id in ("1", "2"):
        await past_task(ports, task_id)
    await ports.past.erase(["1"], "test")
    assert list(await ports.owned.owners("https://id.example", "ann", None)) == [ANN]
    await ports.past.erase(["2"], "test")
    assert list(await ports.owned.owners("https://id.example", "ann", None)) == []
    assert await ports.owned.is_known(ANN)
    assert not await ports.owned.is_known(BOB)
    assert not await ports.owned.is_known("a\x00b")


async def test_what_an_owner_has_is_stored_or_past_until_it_is_erased(ports: Ports) -> None:
    await open_task(ports.log, "present", owner=ANN)
    await past_task(ports, "past")
    await past_task(ports, "erased")
    await ports.past.erase(["erased"], "test")
    for task_id, owner in (("other", BOB), ("same-person", ANN_ELSEWHERE)):
        await open_task(ports.log, task_id, owner=owner)
        await past_task(ports, f"{task_id}-past", owner)
    assert list(await ports.owned.stored(ANN, 10)) == ["present"]
    assert list(await ports.owned.past(ANN, 10)) == ["past"]
    await ports.views.forget(["present"])
    assert list(await ports.owned.stored(ANN, 10)) == []
    assert sorted(await ports.owned.past(ANN, 10)) == ["past", "present"]
    assert len(await ports.owned.past(ANN, 1)) == 1
    assert await ports.owned.drop_webhooks(ANN) == 0


async def test_a_task_forgotten_while_the_last_one_is_erased_keeps_its_owners_name(
    ports: Ports,
) -> None:
    for number in range(15):
        erased = await past_task(ports, f"erased-{number}")
        opened = (await open_task(ports.log, f"new-{number}", owner=ANN)).id
        await asyncio.gather(ports.past.erase([erased], "test"), ports.views.forget([opened]))
        assert list(await ports.owned.owners("https://id.example", "ann", "phone")) == [ANN]
        await ports.past.erase([opened], "test")


async def test_the_next_end_is_that_of_the_first_time_to_live(ports: Ports) -> None:
    assert await ports.views.next_end() is None
    await open_task(ports.log, "unlimited", ttl_ms=None)
    assert await ports.views.next_end() is None
    await open_task(ports.log, "late", ttl_ms=9_000)
    early = await open_task(ports.log, "early", ttl_ms=1_000)
    assert await ports.views.next_end() == early.expires_at
    await ports.views.forget(["early", "late"])
    assert await ports.views.next_end() is None
