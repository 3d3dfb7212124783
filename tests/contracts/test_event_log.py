"""The promise of `EventLog`: all or nothing, in order, one winner a version, any value."""

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from outlast.domain import decisions, errors
from outlast.domain.events import ProgressReported
from outlast.domain.task import Task, fold
from outlast.tests.contracts.stores import Ports, happens, open_task, progresses
from outlast.tests.domain.given import (
    DEPLOY,
    ERROR,
    OPENED,
    REGION,
    RESULT,
    YES,
    answers,
    asks,
    at,
    calls_back,
    calls_back_with,
    cancels,
    completes,
    delegates,
    fails,
    starts,
)

pytestmark = [pytest.mark.anyio, pytest.mark.promise("twins-keep-the-same-contract")]

RACERS = 20

ODD_VALUES: dict[str, Any] = {
    "nul": "a\x00b",
    "lone-surrogate": "a\ud800b",
    "astral": "\U0001f40d",
    "large-integer": [2**70, -(2**70), 2**63, 2**64 - 1, 2**64],
    "quotes": 'it\'s "quoted" \\ back\\slashed {braces} %s $1 \r\n\t',
    "float": [0.1, 1e300, -0.0, 5e-324],
    "megabyte": "x" * 2**20,
    "empty": {"": [{}, [], "", None, False]},
    "all-odd": {"a\x00b": ["a\ud800b", 2**70, "it's"]},
}


async def outcome_of(appending: Any) -> Task | Exception:
    try:
        return await appending
    except errors.OutlastError as error:
        return error


async def test_an_append_returns_the_task_after_its_events(ports: Ports) -> None:
    task = await open_task(ports.log)
    assert task == fold(decisions.open_task(OPENED))
    events = decisions.start_work(task, "worker-a", at(1))
    assert await ports.log.append(task, events) == fold([*decisions.open_task(OPENED), *events])


async def test_events_are_read_first_to_last_exactly_as_they_were_appended(ports: Ports) -> None:
    task = await open_task(ports.log)
    other = await open_task(ports.log, "another-task")
    started = decisions.start_work(task, "worker-a", at(1))
    task = await ports.log.append(task, started)
    await happens(ports.log, other, starts())
    asked = decisions.finish_leg(task, 1, [DEPLOY, REGION], "state", at(2))
    task = await ports.log.append(task, asked)
    stopped = decisions.request_cancel(task, at(3))
    task = await ports.log.append(task, stopped)
    everything = [*decisions.open_task(OPENED), *started, *asked, *stopped]
    assert list(await ports.log.read(OPENED.task_id)) == everything
    assert [event.version for event in everything] == [1, 2, 3, 4, 5, 6]
    assert fold(everything) == task


@pytest.mark.parametrize("version", [None, 0, 1, 400, 700])
async def test_a_task_of_before_and_its_tail_make_the_task_of_now(
    ports: Ports, version: int | None
) -> None:
    task = await happens(ports.log, await open_task(ports.log), starts())
    assert await ports.log.tail("unknown", version) == (None, [])
    for _ in range(3):
        told = (
            ProgressReported(task.id, number, OPENED.at, 1, number, None, None)
            for number in range(task.version + 1, task.version + 201)
        )
        task = await ports.log.append(task, tuple(told))
        for asked in (None, version):
            before, events = await ports.log.tail(OPENED.task_id, asked)
            assert fold(events, before) == task
            assert before is None or asked is None or before.version <= asked


@pytest.mark.parametrize("until", [None, at(3_600)], ids=["without an end", "with an end"])
async def test_what_a_job_elsewhere_told_is_read_as_it_was_appended(
    ports: Ports, until: datetime | None
) -> None:
    task = await open_task(ports.log)
    task = await happens(ports.log, task, starts(), delegates(until), calls_back("evt-1"))
    assert fold(await ports.log.read(task.id)) == task
    assert (task.delegated_until, task.heard) == (until, ("evt-1",))
    view = await ports.views.get(task.id)
    assert view is not None
    assert (view.is_terminal, view.expires_at) == (False, task.expires_at)
    ended = await happens(ports.log, task, calls_back_with())
    assert fold(await ports.log.read(task.id)) == ended
    assert ended.heard == ("evt-1", "evt-done")


async def test_of_racing_callbacks_with_one_id_exactly_one_is_appended(ports: Ports) -> None:
    task = await happens(ports.log, await open_task(ports.log), starts(), delegates())
    outcomes = await asyncio.gather(
        *(outcome_of(happens(ports.log, task, calls_back_with())) for _ in range(RACERS))
    )
    losers = [outcome for outcome in outcomes if isinstance(outcome, errors.StaleVersion)]
    assert len(losers) == RACERS - 1
    stored = fold(await ports.log.read(task.id))
    assert stored is not None
    assert calls_back_with()(stored) == ()


@pytest.mark.parametrize("task_id", ["unknown", "", "a\x00b", "a\ud800b", "x" * 10_000, "%s'"])
async def test_an_unknown_task_has_no_events(ports: Ports, task_id: str) -> None:
    await open_task(ports.log)
    assert list(await ports.log.read(task_id)) == []


async def test_an_append_to_a_task_that_has_moved_on_is_refused_and_leaves_nothing(
    ports: Ports,
) -> None:
    old = await open_task(ports.log)
    task = await happens(ports.log, old, starts("worker-a"))
    events, view = await ports.log.read(old.id), await ports.views.get(old.id)
    with pytest.raises(errors.StaleVersion) as refused:
        await ports.log.append(old, decisions.request_cancel(old, at(2)))
    assert (refused.value.task_id, refused.value.expected) == (old.id, 1)
    assert await ports.log.read(old.id) == events
    assert await ports.views.get(old.id) == view
    assert (await happens(ports.log, task, completes())).version == 3


async def test_a_task_from_the_future_is_refused_as_well(ports: Ports) -> None:
    task = await open_task(ports.log)
    unseen = fold([*decisions.open_task(OPENED), *decisions.start_work(task, "w", at(1))])
    assert unseen is not None
    with pytest.raises(errors.StaleVersion):
        await ports.log.append(unseen, completes()(unseen))
    assert [event.version for event in await ports.log.read(task.id)] == [1]


async def test_an_id_opens_one_task_only(ports: Ports) -> None:
    task = await happens(ports.log, await open_task(ports.log), starts())
    with pytest.raises(errors.StaleVersion) as refused:
        await open_task(ports.log, tool="another_tool")
    assert refused.value.expected == 0
    assert fold(await ports.log.read(task.id)) == task


async def test_an_append_to_a_forgotten_task_is_refused_and_brings_nothing_back(
    ports: Ports,
) -> None:
    task = await open_task(ports.log)
    await ports.views.forget([task.id])
    with pytest.raises(errors.StaleVersion):
        await happens(ports.log, task, starts())
    assert list(await ports.log.read(task.id)) == []
    assert await ports.views.get(task.id) is None
    assert await ports.dispatcher.depth() == 0


async def test_of_racing_appends_on_one_version_exactly_one_wins(ports: Ports) -> None:
    task = await open_task(ports.log)
    outcomes = await asyncio.gather(
        *(outcome_of(happens(ports.log, task, starts(f"worker-{n}"))) for n in range(RACERS))
    )
    winners = [outcome for outcome in outcomes if isinstance(outcome, Task)]
    losers = [outcome for outcome in outcomes if isinstance(outcome, errors.StaleVersion)]
    assert (len(winners), len(losers)) == (1, RACERS - 1)
    assert fold(await ports.log.read(task.id)) == winners[0]


async def test_of_racing_openings_with_one_key_exactly_one_wins(ports: Ports) -> None:
    outcomes = await asyncio.gather(
        *(outcome_of(open_task(ports.log, f"t-{n}", idempotency_key="k")) for n in range(RACERS))
    )
    winners = [outcome for outcome in outcomes if isinstance(outcome, Task)]
    losers = [outcome for outcome in outcomes if isinstance(outcome, errors.DuplicateOpening)]
    assert (len(winners), len(losers)) == (1, RACERS - 1)
    for number in range(RACERS):
        stored = f"t-{number}" == winners[0].id
        assert bool(await ports.log.read(f"t-{number}")) == stored
        assert (await ports.views.get(f"t-{number}") is not None) == stored
    assert await ports.dispatcher.depth() == 1


async def test_a_key_opens_one_task_for_each_owner(ports: Ports) -> None:
    await open_task(ports.log, "first", idempotency_key="key")
    await open_task(ports.log, "second", idempotency_key="key", owner="another-owner")
    await open_task(ports.log, "third", idempotency_key="another-key")
    await open_task(ports.log, "fourth")
    await open_task(ports.log, "fifth")
    with pytest.raises(errors.DuplicateOpening):
        await open_task(ports.log, "sixth", idempotency_key="key")
    assert list(await ports.log.read("sixth")) == []


async def test_the_key_of_a_forgotten_task_is_free_again(ports: Ports) -> None:
    old = await open_task(ports.log, "old", idempotency_key="key")
    await ports.views.forget(["old"])
    with pytest.raises(errors.StaleVersion):
        await happens(ports.log, old, starts())
    new = await open_task(ports.log, "new", idempotency_key="key")
    with pytest.raises(errors.StaleVersion):
        await happens(ports.log, old, starts())
    assert (await happens(ports.log, new, starts())).version == 2


async def test_nothing_cannot_be_appended(ports: Ports) -> None:
    task = await open_task(ports.log)
    for before in (None, task):
        with pytest.raises(ValueError, match="nothing to append"):
            await ports.log.append(before, ())


@pytest.mark.parametrize("value", ODD_VALUES.values(), ids=ODD_VALUES.keys())
async def test_any_value_that_json_can_carry_survives(ports: Ports, value: Any) -> None:
    odd = {"value": value}
    task = await open_task(ports.log, arguments=odd, carried_answers=odd)
    task = await happens(
        ports.log,
        task,
        starts(),
        asks(replace(DEPLOY, request={"method": "elicitation/create", "params": odd})),
        answers({"in-1": odd}),
        starts(),
        completes(odd),
    )
    stored = fold(await ports.log.read(task.id))
    assert stored == task
    assert repr(stored) == repr(task)  # 1 and 1.0 are equal, and yet not the same JSON


@pytest.mark.parametrize(
    "text", ["it's", 'say "no"', "back\\slash", "{a,NULL}", "a\x00b", "\ud800"]
)
async def test_any_text_may_stand_in_names_keys_and_messages(ports: Ports, text: str) -> None:
    task = await open_task(
        ports.log, tool=text, upstream=text, idempotency_key=text, carried_state=text
    )
    question = replace(DEPLOY, name=text)
    task = await happens(ports.log, task, starts(), asks(question, state=text))
    task = await happens(ports.log, task, answers({"in-1": YES}), starts(), progresses())
    task = await happens(ports.log, task, fails({**ERROR, "message": text}))
    assert fold(await ports.log.read(task.id)) == task
    found = await ports.views.opened_with(OPENED.owner, text)
    assert found is not None
    assert found.task_id == task.id
    with pytest.raises(errors.DuplicateOpening):
        await open_task(ports.log, "again", idempotency_key=text)


async def test_what_one_caller_appended_every_other_sees_at_once(ports: Ports) -> None:
    async def open_and_look(number: int) -> bool:
        task = await open_task(ports.log, f"task-{number}")
        task = await happens(ports.log, task, starts(), completes(RESULT))
        view = await ports.views.get(task.id)
        return view is not None and view.version == len(await ports.log.read(task.id)) == 3

    assert all(await asyncio.gather(*(open_and_look(number) for number in range(RACERS))))


async def test_two_appends_of_two_tasks_do_not_disturb_each_other(ports: Ports) -> None:
    tasks = [await open_task(ports.log, f"task-{number}") for number in range(RACERS)]
    histories = [
        happens(ports.log, task, starts(), progresses(), cancels(), completes()) for task in tasks
    ]
    for task in await asyncio.gather(*histories):
        assert fold(await ports.log.read(task.id)) == task
