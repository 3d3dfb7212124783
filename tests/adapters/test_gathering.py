"""Batches of what many callers want at once."""

import asyncio
import itertools
from collections.abc import Sequence

import anyio
import pytest

from outlast.adapters.gathering import Gathering

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0
SHORT_S = 0.05


class Work:
    """Keeps its batches, and lets each go on when it is told to."""

    def __init__(self, *, goes: bool = False) -> None:
        self.batches: list[list[str]] = []
        self.may_go = asyncio.Semaphore(1_000_000 if goes else 0)
        self.most_at_once = self.at_once = 0

    async def __call__(self, wishes: Sequence[str]) -> Sequence[str | Exception]:
        self.batches.append(list(wishes))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.may_go.acquire()
        finally:
            self.at_once -= 1
        if "poison" in wishes:
            raise RuntimeError("all of it")
        return [ValueError(wish) if wish == "bad" else wish.upper() for wish in wishes]

    async def until_there_are(self, count: int) -> None:
        with anyio.fail_after(PATIENCE_S):
            while len(self.batches) < count:  # noqa: ASYNC110 - the loop turns until it has happened
                await asyncio.sleep(0)  # noqa: TID251 - see above


def later(seconds: float = PATIENCE_S) -> float:
    return asyncio.get_running_loop().time() + seconds


async def asked(
    gathering: Gathering[str, str], *wishes: str, seconds: float = PATIENCE_S
) -> "list[asyncio.Task[str]]":
    until = later(seconds)
    tasks = [asyncio.create_task(gathering.do(wish, until)) for wish in wishes]
    await asyncio.sleep(0)  # noqa: TID251 - each gets its place in line
    return tasks


async def test_the_first_goes_at_once_and_the_others_gather_meanwhile() -> None:
    work = Work()
    gathering = Gathering(work)
    (first,) = await asked(gathering, "a")
    await work.until_there_are(1)
    others = await asked(gathering, "b", "c", "d")
    work.may_go.release()
    work.may_go.release()
    assert await asyncio.gather(first, *others) == ["A", "B", "C", "D"]
    assert work.batches == [["a"], ["b", "c", "d"]]


async def test_what_comes_in_the_same_turn_goes_along() -> None:
    work = Work(goes=True)
    results = await asyncio.gather(*await asked(Gathering(work), "a", "b", "c"))
    assert results == ["A", "B", "C"]
    assert work.batches == [["a", "b", "c"]]


async def test_each_gets_its_own_outcome_and_no_other() -> None:
    gathering = Gathering(Work(goes=True))
    outcomes = await asyncio.gather(
        *await asked(gathering, "a", "bad", "c"), return_exceptions=True
    )
    assert outcomes[0] == "A"
    assert isinstance(outcomes[1], ValueError)
    assert outcomes[2] == "C"


async def test_a_batch_that_fails_tells_all_of_it_and_the_next_goes_on() -> None:
    gathering = Gathering(Work(goes=True))
    failed = await asyncio.gather(*await asked(gathering, "poison", "b"), return_exceptions=True)
    assert [type(outcome) for outcome in failed] == [RuntimeError, RuntimeError]
    assert await gathering.do("c", later()) == "C"


async def test_of_one_key_one_is_under_way_and_the_others_keep_their_places() -> None:
    work = Work()
    gathering = Gathering(work, key=lambda wish: wish[0], flights=2)
    tasks = await asked(gathering, "a1")
    await work.until_there_are(1)
    tasks += await asked(gathering, "a2", "a3", "b1")
    await work.until_there_are(2)
    for _ in range(8):
        work.may_go.release()
    await asyncio.gather(*tasks)
    assert work.batches == [["a1"], ["b1"], ["a2"], ["a3"]]


async def test_no_batch_is_too_large_and_no_more_fly_than_may() -> None:
    work = Work(goes=True)
    gathering = Gathering(work, batch_max=3, flights=2)
    await asyncio.gather(*await asked(gathering, *"abcdefghijkl"))
    assert max(map(len, work.batches)) == 3
    assert sorted(itertools.chain(*work.batches)) == list("abcdefghijkl")
    assert work.most_at_once <= 2


async def test_who_finds_no_room_waits_and_is_served() -> None:
    work = Work()
    gathering = Gathering(work, waiting_max=2)
    tasks = await asked(gathering, "a")
    await work.until_there_are(1)
    tasks += await asked(gathering, *"bcdefg")
    for _ in range(7):
        work.may_go.release()
    assert await asyncio.gather(*tasks) == list("ABCDEFG")
    assert [len(batch) for batch in work.batches] == [1, 2, 2, 2]


async def test_whom_a_turn_names_is_not_behind_the_flood_of_another() -> None:
    work = Work()
    gathering = Gathering(work, turn=lambda wish: wish[0], batch_max=3)
    tasks = await asked(gathering, "a0")
    await work.until_there_are(1)
    tasks += await asked(gathering, "a1", "a2", "a3", "a4", "b1", "b2", "c1")
    for _ in range(8):
        work.may_go.release()
    await asyncio.gather(*tasks)
    assert work.batches == [["a0"], ["a1", "b1", "c1"], ["a2", "b2", "a3"], ["a4"]]


async def test_a_batch_holds_no_more_than_it_may_and_what_is_too_large_flies_alone() -> None:
    work = Work()
    gathering = Gathering(work, size=len, size_max=5)
    tasks = await asked(gathering, "a")
    await work.until_there_are(1)
    tasks += await asked(gathering, "bb", "ccc", "d", "eeeeeeeee", "f")
    for _ in range(8):
        work.may_go.release()
    await asyncio.gather(*tasks)
    assert work.batches == [["a"], ["bb", "ccc"], ["d"], ["eeeeeeeee"], ["f"]]


async def test_a_flight_that_is_about_to_leave_takes_all_so_that_no_other_leaves_with_it() -> None:
    work = Work(goes=True)
    gathering = Gathering(work, flights=3)
    tasks = await asked(gathering, *"abcdef")
    assert len(gathering._flying) == 1
    await asyncio.gather(*tasks)
    assert work.batches == [list("abcdef")]


async def test_who_goes_away_from_the_door_gives_its_place_to_the_next() -> None:
    work = Work()
    gathering = Gathering(work, waiting_max=1)
    tasks = await asked(gathering, "a")
    await work.until_there_are(1)
    tasks += await asked(gathering, "b")
    gone, *others = await asked(gathering, "x", "c", "d")
    gone.cancel()
    for _ in range(4):
        work.may_go.release()
    assert await asyncio.gather(*tasks, *others) == list("ABCD")
    assert work.batches == [["a"], ["b"], ["c"], ["d"]]


async def test_a_place_given_to_one_that_is_just_going_away_is_not_lost() -> None:
    work = Work()
    at_the_door: list[asyncio.Task[str]] = []

    async def works(wishes: Sequence[str]) -> Sequence[str | Exception]:
        if "b" in wishes:  # it has just left the line, and its place was given to the next
            at_the_door[0].cancel()
        return await work(wishes)

    gathering = Gathering(works, waiting_max=1)
    tasks = await asked(gathering, "a")
    await work.until_there_are(1)
    tasks += await asked(gathering, "b")
    at_the_door += await asked(gathering, "x", "c")
    for _ in range(3):
        work.may_go.release()
    with anyio.fail_after(PATIENCE_S):
        assert await asyncio.gather(*tasks, at_the_door[1]) == list("ABC")
    assert at_the_door[0].cancelled()
    assert work.batches == [["a"], ["b"], ["c"]]


async def test_a_caller_that_goes_away_leaves_its_wish_and_hurts_nobody() -> None:
    work = Work()
    gathering = Gathering(work)
    tasks = await asked(gathering, "a")
    await work.until_there_are(1)
    gone, stays = await asked(gathering, "bad", "c")
    gone.cancel()
    work.may_go.release()
    work.may_go.release()
    assert await stays == "C"
    assert await tasks[0] == "A"
    assert gone.cancelled()
    await gathering.drained()
    assert work.batches == [["a"], ["bad", "c"]]


@pytest.mark.parametrize("place", ["under way", "in line", "at the door"])
async def test_who_has_waited_long_enough_is_told_and_the_others_are_served(place: str) -> None:
    work = Work()
    gathering = Gathering(work, batch_max=1, waiting_max=1)
    ahead = {"under way": [], "in line": ["a"], "at the door": ["a", "b"]}[place]
    tasks = [task for wish in ahead for task in await asked(gathering, wish)]
    (gone,) = await asked(gathering, "x", seconds=SHORT_S)
    tasks += await asked(gathering, "z")
    with pytest.raises(TimeoutError):
        await gone
    for _ in range(len(tasks) + 1):
        work.may_go.release()
    assert await asyncio.gather(*tasks) == [wish.upper() for wish in [*ahead, "z"]]
    assert ("x" in [wish for batch in work.batches for wish in batch]) == (place != "at the door")
