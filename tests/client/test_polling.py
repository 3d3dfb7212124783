"""Polling: its pace, what it survives, what ends it."""

from typing import Any

import anyio
import pytest

from outlast.delivery import polling, source
from outlast.delivery.polling import PollingSource, interval_ms
from outlast.domain import clienting, errors
from outlast.domain.clienting import Backstop, Place, TaskExpired
from outlast.tests.client.playing import CREATED, Play, completed, state, task

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "INTERVAL_MS_MIN", 0)
    monkeypatch.setattr(source, "BACKOFF_S_FIRST", 0.0)


async def polled(play: Play) -> list[Any]:
    with anyio.fail_after(PATIENCE_S):
        return [told.task["status"] async for told in PollingSource(play).watch("t")]


@pytest.mark.parametrize(
    ("suggested", "followed"),
    [
        *((odd, 1000) for odd in (0, -5, None, "2s", True, float("nan"), float("inf"))),
        *((10**9, 60_000), (5000, 5000), (1500.5, 1500.5)),
    ],
)
def test_only_a_sensible_pace_is_followed(suggested: Any, followed: float):
    assert interval_ms({"pollIntervalMs": suggested}) == followed


def test_a_pace_has_a_floor_and_may_be_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    assert interval_ms({"pollIntervalMs": 1}) == 50
    assert interval_ms({}) == 1000


@pytest.mark.parametrize(
    "trouble",
    [
        errors.ConnectionLost("503"),
        errors.RequestRefused(-32603, "Internal error"),
        errors.RequestRefused(-32601, "an older replica"),
        {"nonsense": True},
        task("dreaming"),
        {**task(), "taskId": "another"},
        task(at="yesterday"),
    ],
)
async def test_one_bad_answer_does_not_end_the_watch(trouble: Any):
    play = Play(tasks_get=[task(), trouble, trouble, completed()])
    assert await polled(play) == ["working", "completed"]


@pytest.mark.parametrize("code", [-32602, 401, 403])
async def test_no_such_task_and_a_refused_identity_end_it(code: int):
    play = Play(tasks_get=[task(), errors.RequestRefused(code, "no")])
    with pytest.raises(errors.RequestRefused):
        await polled(play)
    assert len(play.heard) == 2


@pytest.mark.parametrize("last", [task(ttlMs=0), errors.ConnectionLost()])
async def test_the_time_to_live_ends_it_whatever_the_server_says(
    last: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(clienting, "BACKSTOP_GRACE_S", 0.05)
    with pytest.raises(TaskExpired):
        await polled(Play(tasks_get=[task(ttlMs=0, statusMessage="1"), task(ttlMs=0), last]))


def test_an_age_is_counted_by_the_servers_stamps_and_our_own_clock():
    backstop, here = Backstop(), 1_000_000.0
    hour_later = task(at="2026-01-01T01:00:00Z", ttlMs=2 * 3_600_000)
    backstop.told(hour_later, here)
    backstop.told(hour_later, here + 3000)  # told again, it is no younger
    assert backstop.left_s(here + 3000) == pytest.approx(600 + clienting.BACKSTOP_GRACE_S)
    assert backstop.is_over(here + 3600 + clienting.BACKSTOP_GRACE_S)
    backstop.told({**hour_later, "ttlMs": 3 * 3_600_000}, here + 3600)  # more time was given
    assert not backstop.is_over(here + 3700)
    backstop.told({**hour_later, "ttlMs": None}, here + 3700)
    assert backstop.left_s(here + 10**6) is None


def test_states_are_told_apart_by_instants_and_not_by_spelling():
    place = Place()
    assert place.is_new(state("working", at="2026-01-01T00:00:05Z"))
    assert not place.is_new(state("working", at="2026-01-01T01:00:05+01:00"))  # the same instant
    assert not place.is_new(state("working", at="2026-01-01T00:00:04.9Z"))
    assert not place.is_new(state("working", at="2026-01-01T00:00:05"))  # no zone: UTC
    assert place.is_new(state("working", at="2026-01-01T00:00:05Z", statusMessage="a coarse clock"))
    assert place.is_new(state("input_required", at="2026-01-01T02:00:06+02:00", inputRequests={}))
    assert CREATED.endswith("Z")


def test_states_with_versions_are_told_apart_by_them():
    place = Place(3)
    told = [place.is_new(state("working", version)) for version in (3, 5, 4, 5, 6)]
    assert told == [False, True, False, False, True]
