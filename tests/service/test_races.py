"""Two clients at once, on two replicas: every race has one outcome, the same for all readers."""

import os
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from outlast.adapters.upstream_call import CANCEL_HEARD_S_MAX
from outlast.tests.service.race_support import (
    INVALID_PARAMS,
    Deed,
    Refused,
    Replica,
    Service,
    State,
    Witness,
    at_once,
    repeat,
    text_of,
    two_replicas,
    words,
)
from outlast.tests.support.mcp import TERMINAL

pytestmark = pytest.mark.anyio

REPETITIONS = int(os.environ.get("OUTLAST_RACE_REPETITIONS", "200"))

ASKED_ONCE = ["called", "called", "began", "ran"]  # the leg that asks, and the one that runs
WORK_S = 0.02
FOR_EVER_S = 600.0
HEARD_NS_MAX = CANCEL_HEARD_S_MAX * 1e9

Answers = Mapping[str, str]


@pytest.fixture(scope="module")
async def replicas(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Replica, Replica]]:
    async with two_replicas(module_database_url, tmp_path_factory.mktemp("races")) as both:
        yield both


@pytest.fixture
def service(replicas: tuple[Replica, Replica], tmp_path: Path) -> Service:
    return Service(replicas, tmp_path)


async def update_and_read(task: Witness, here: Replica, there: Replica, given: Answers) -> State:
    """Answer on one replica and read on the other; the witness compares."""
    await task.update(here, given)
    return await task.get(there)


def check_stopped_for_good(task: Witness, done: list[Deed], cancel_ns: int) -> None:
    """The tool had run or been stopped by the time that the first reader was told `cancelled`.

    Or its server had answered nothing for so long after the cancel that it was waited for no more.
    """
    assert words(done).count("ran") <= 1
    ended_ns = task.ended_ns or 0
    late = [deed for deed in done if deed.at_ns > ended_ns]
    is_excused = ended_ns - cancel_ns >= HEARD_NS_MAX
    assert not late or is_excused, f"{late} after the task was told to be cancelled: {done}"


async def until_over(task: Witness, there: Replica) -> None:
    """Return once the task has ended."""
    await task.until((there,), lambda state: state["status"] in TERMINAL)


def check_outcome(task: Witness, done: list[Deed], calls: int, cancel_ns: int) -> None:
    if task.newest["status"] == "completed":
        expected = ["called"] * calls + ["began", "ran"]
        assert [word for word in words(done) if word != "told-to-stop"] == expected
    else:
        assert task.newest["status"] == "cancelled", task.newest
        check_stopped_for_good(task, done, cancel_ns)


# --- answers


@pytest.mark.promise("races-have-one-outcome")
@pytest.mark.promise("reads-are-strong")
async def test_two_answers_at_once_both_land_and_the_task_resumes_once(service: Service):
    async def race(number: int) -> None:
        here, there = service.pair(number)
        task = await service.create(here, "both", f"{number}")
        await task.asked((there, here), "in-1", "in-2")
        await at_once(
            update_and_read(task, here, there, {"in-1": f"a{number}"}),
            update_and_read(task, there, here, {"in-2": f"b{number}"}),
        )
        end = await task.end((here, there))
        assert text_of(end) == f"a{number} b{number}"

    await repeat(REPETITIONS, race)
    done = await service.settle()
    assert {label: words(deeds) for label, deeds in done.items()} == {
        f"{number}": ASKED_ONCE for number in range(REPETITIONS)
    }


@pytest.mark.promise("races-have-one-outcome")
async def test_the_same_question_answered_twice_at_once_resumes_the_task_once(service: Service):
    """Every other time the two answers differ: one of them is the answer, the other is ignored."""

    async def race(number: int) -> None:
        here, there = service.pair(number // 2)
        task = await service.create(here, "once", f"{number}")
        await task.asked((there, here), "in-1")
        sent = ("yes", "yes" if number % 2 else "no")
        await at_once(
            update_and_read(task, here, there, {"in-1": sent[0]}),
            update_and_read(task, there, here, {"in-1": sent[1]}),
        )
        end = await task.end((here, there))
        assert text_of(end) in sent

    await repeat(REPETITIONS, race)
    done = await service.settle()
    assert {label: words(deeds) for label, deeds in done.items()} == {
        f"{number}": ASKED_ONCE for number in range(REPETITIONS)
    }


@pytest.mark.promise("races-have-one-outcome")
async def test_an_answer_sent_again_after_its_reply_was_lost_has_one_effect(service: Service):
    """Hung up on before the reply or within it; sent again elsewhere, and when all is over."""

    async def race(number: int) -> None:
        here, there = service.pair(number // 2)
        task = await service.create(here, "once", f"{number}")
        await task.asked((there, here), "in-1")
        lost = here.ask_and_hang_up(task.answering({"in-1": "go"}), reply_bytes=number % 2)
        if number % 4 < 2:
            await at_once(lost, update_and_read(task, there, here, {"in-1": "go"}))
        else:
            await lost
            await update_and_read(task, there, here, {"in-1": "go"})
        end = await task.end((here, there))
        assert text_of(end) == "go"
        await at_once(
            update_and_read(task, here, there, {"in-1": "go"}),
            update_and_read(task, there, here, {"in-1": "go"}),
        )

    await repeat(REPETITIONS, race)
    done = await service.settle()
    assert {label: words(deeds) for label, deeds in done.items()} == {
        f"{number}": ASKED_ONCE for number in range(REPETITIONS)
    }


@pytest.mark.promise("input-keys-are-never-reused")
@pytest.mark.promise("races-have-one-outcome")
async def test_an_old_answer_sent_again_never_answers_the_same_question_put_anew(service: Service):
    async def race(number: int) -> None:
        here, there = service.pair(number)
        task = await service.create(here, "twice", f"{number}")
        first = await task.asked((there, here), "in-1")
        await task.update(there, {"in-1": f"a{number}"})
        second = await task.asked((here, there), "in-2")
        assert list(first["inputRequests"].values()) == list(second["inputRequests"].values())
        await at_once(
            update_and_read(task, here, there, {"in-1": "replayed"}),
            update_and_read(task, there, here, {"in-1": "replayed"}),
        )
        assert await task.get(here) == await task.get(there) == second
        await at_once(
            update_and_read(task, here, there, {"in-1": "replayed"}),
            update_and_read(task, there, here, {"in-2": f"b{number}"}),
        )
        end = await task.end((here, there))
        assert text_of(end) == f"a{number} b{number}"

    await repeat(REPETITIONS, race)
    done = await service.settle()
    assert {label: words(deeds) for label, deeds in done.items()} == {
        f"{number}": ["called", *ASKED_ONCE] for number in range(REPETITIONS)
    }


# --- cancelling


@pytest.mark.promise("races-have-one-outcome")
@pytest.mark.promise("terminal-is-final")
async def test_a_parked_task_cancelled_twice_at_once_ends_and_takes_no_answer(service: Service):
    async def race(number: int) -> None:
        here, there = service.pair(number)
        task = await service.create(here, "once", f"{number}")
        await task.asked((there, here), "in-1")
        await at_once(task.cancel(here), task.cancel(there))
        end = await task.get(here)
        assert end["status"] == "cancelled"
        assert "inputRequests" not in end
        await at_once(
            update_and_read(task, here, there, {"in-1": "go"}),
            update_and_read(task, there, here, {"in-1": "go"}),
            task.cancel(here),
        )
        assert await task.end((here, there)) == end

    await repeat(REPETITIONS, race)
    done = await service.settle()
    assert {label: words(deeds) for label, deeds in done.items()} == {
        f"{number}": ["called"] for number in range(REPETITIONS)
    }


@pytest.mark.promise("races-have-one-outcome")
async def test_an_answer_and_a_cancel_at_once_end_as_one_of_the_two(service: Service):
    """From the same instant to a few reads later, when the resumed run is under way, or is over."""
    tasks: dict[str, Witness] = {}
    cancels_ns: dict[str, int] = {}

    async def race(number: int) -> None:
        here, there = service.pair(number)
        task = await service.create(here, "once", f"{number}", work_s=WORK_S)
        tasks[f"{number}"] = task
        await task.asked((there, here), "in-1")

        async def cancel_after(reads: int) -> None:
            for _ in range(reads):
                await task.get(there)
            if reads == 7:
                await until_over(task, there)
            cancels_ns[f"{number}"] = time.monotonic_ns()
            await task.cancel(there)

        await at_once(task.update(here, {"in-1": "go"}), cancel_after(number // 2 % 8))
        await task.end((here, there))

    await repeat(REPETITIONS, race)
    done = await service.settle()
    for label, task in tasks.items():
        check_outcome(task, done[label], calls=2, cancel_ns=cancels_ns[label])
    assert {task.newest["status"] for task in tasks.values()} == {"cancelled", "completed"}


@pytest.mark.promise("races-have-one-outcome")
@pytest.mark.promise("terminal-is-final")
async def test_a_cancel_at_the_instant_of_completion_leaves_one_end_for_all(service: Service):
    """From before the run to after its end, by the number of reads in between."""
    tasks: dict[str, Witness] = {}
    cancels_ns: dict[str, int] = {}

    async def race(number: int) -> None:
        here, there = service.pair(number)
        task = await service.create(here, "work", f"{number}", work_s=WORK_S)
        tasks[f"{number}"] = task
        for _ in range(reads := number // 2 % 10):
            await task.get(there)
        if reads == 9:
            await until_over(task, there)
        cancels_ns[f"{number}"] = time.monotonic_ns()
        await at_once(task.cancel(here), task.cancel(there), task.get(here), task.get(there))
        await task.end((here, there))

    await repeat(REPETITIONS, race)
    done = await service.settle()
    for label, task in tasks.items():
        check_outcome(task, done.get(label, []), calls=1, cancel_ns=cancels_ns[label])
    assert {task.newest["status"] for task in tasks.values()} == {"cancelled", "completed"}


@pytest.mark.promise("races-have-one-outcome")
async def test_many_cancels_at_once_tell_the_upstream_once(service: Service):
    tasks: dict[str, Witness] = {}
    cancels_ns: dict[str, int] = {}

    async def race(number: int) -> None:
        here, there = service.pair(number)
        label = f"{number}"
        task = tasks[label] = await service.create(here, "work", label, work_s=FOR_EVER_S)
        await service.did(label, "began")
        cancels_ns[label] = time.monotonic_ns()
        await at_once(*(task.cancel(replica) for replica in (here, there, here, there)))
        await at_once(task.cancel(there), task.get(here))
        end = await task.end((here, there))
        assert end["status"] == "cancelled"

    await repeat(REPETITIONS, race)
    done = await service.settle()
    for label, task in tasks.items():
        assert words(done[label]) == ["called", "began", "told-to-stop", "stopped"]
        check_stopped_for_good(task, done[label], cancels_ns[label])


# --- creating


@pytest.mark.promise("races-have-one-outcome")
@pytest.mark.promise("creation-is-idempotent")
async def test_the_same_call_sent_four_times_at_once_is_one_task_that_runs_once(service: Service):
    async def race(number: int) -> None:
        here, there = service.pair(number)
        made: list[Witness] = []

        async def create(replica: Replica) -> None:
            made.append(await service.create(replica, "work", f"{number}", key=f"same-{number}"))

        await at_once(*(create(replica) for replica in (here, there, here, there)))
        assert len({task.task_id for task in made}) == 1
        end = await made[0].end((here, there))
        assert text_of(end) == "worked"

    await repeat(REPETITIONS, race)
    done = await service.settle()
    assert {label: words(deeds) for label, deeds in done.items()} == {
        f"{number}": ["called", "began", "ran"] for number in range(REPETITIONS)
    }


@pytest.mark.promise("races-have-one-outcome")
@pytest.mark.promise("creation-is-idempotent")
async def test_of_two_calls_with_one_key_sent_at_once_one_runs_and_one_is_refused(
    service: Service,
):
    async def race(number: int) -> None:
        here, there = service.pair(number)
        made: list[Witness] = []
        refused: list[int] = []

        async def create(replica: Replica, label: str) -> None:
            try:
                made.append(await service.create(replica, "work", label, key=f"one-{number}"))
            except Refused as error:
                refused.append(error.code)

        await at_once(create(here, f"{number}-a"), create(there, f"{number}-b"))
        assert (len(made), refused) == (1, [INVALID_PARAMS])
        end = await made[0].end((here, there))
        assert text_of(end) == "worked"

    await repeat(REPETITIONS, race)
    done = await service.settle()
    assert sorted(label.split("-")[0] for label in done) == sorted(map(str, range(REPETITIONS)))
    assert all(words(deeds) == ["called", "began", "ran"] for deeds in done.values())


# --- reading


@pytest.mark.promise("reads-are-strong")
@pytest.mark.promise("create-is-durable")
async def test_every_acknowledged_change_is_read_at_once_on_the_other_replica(service: Service):
    async def race(number: int) -> None:
        here, there = service.pair(number)
        task = await service.create(here, "both", f"{number}")
        await task.get(there)
        await task.asked((here, there), "in-1", "in-2")
        state = await update_and_read(task, here, there, {"in-2": "b"})
        assert set(state["inputRequests"]) == {"in-1"}
        await task.cancel(there)
        state = await task.get(here)
        assert state["status"] == "cancelled"
        assert await task.end((here, there)) == state

    await repeat(REPETITIONS, race)
    done = await service.settle()
    assert all(words(deeds) == ["called"] for deeds in done.values())
