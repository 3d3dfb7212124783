"""The end of a task's time, by the decider: who gets more, what is ended, how long it stays."""

from datetime import datetime, timedelta, timezone

import pytest

from outlast.domain import decisions
from outlast.domain.task import Task, TaskStatus
from outlast.tests.domain.given import (
    DEPLOY,
    TTL_MS,
    YES,
    Wish,
    after,
    answers,
    asks,
    at,
    cancels,
    completes,
    fails,
    holds,
    loses,
    opened,
    starts,
)

TTL_S = TTL_MS / 1000
TOLD_EXPIRED = {"reason": "expired"}


def ends(task: Task, seconds: float) -> Task:
    return after(task, decisions.expire(task, at(seconds)))


@pytest.mark.parametrize(
    ("microsecond", "hours", "written"),
    [
        (0, 0, "2026-02-03T04:05:06.000Z"),
        (999_999, 0, "2026-02-03T04:05:06.999Z"),
        (7_000, 0, "2026-02-03T04:05:06.007Z"),
        (70_500, 5, "2026-02-02T23:05:06.070Z"),
        (70_500, -20, "2026-02-04T00:05:06.070Z"),
    ],
)
def test_an_instant_is_written_in_utc_with_its_milliseconds_cut_and_not_rounded(
    microsecond: int, hours: int, written: str
) -> None:
    zone = timezone(timedelta(hours=hours))
    assert decisions.instant(datetime(2026, 2, 3, 4, 5, 6, microsecond, zone)) == written


@pytest.mark.parametrize(
    "wishes",
    [[], [starts(), asks(DEPLOY)], [starts(), holds(DEPLOY)]],
    ids=["queued", "parked", "held"],
)
def test_what_waits_at_the_end_of_its_time_fails_and_waits_no_more(wishes: list[Wish]) -> None:
    task = after(opened(), *wishes)
    assert ends(task, TTL_S - 0.001) == task
    ended = ends(task, TTL_S)
    assert (ended.status, ended.worker, ended.outstanding) == (TaskStatus.FAILED, None, ())
    assert ended.error is not None
    assert ended.error["data"] == TOLD_EXPIRED
    assert decisions.expire(ended, at(TTL_S * 10)) == ()


@pytest.mark.parametrize(
    "wishes",
    [
        [starts()],
        [starts(), holds(DEPLOY), answers({"in-1": YES})],
        [starts(), holds(DEPLOY), cancels()],
    ],
    ids=["running", "answered", "withdrawn"],
)
def test_what_is_at_work_is_left_to_its_worker_which_gets_more_time(wishes: list[Wish]) -> None:
    task = after(opened(), *wishes)
    assert decisions.expire(task, at(TTL_S * 10)) == ()
    extended = after(task, decisions.extend_ttl(task, task.attempt, at(TTL_S - 1)))
    assert extended.ttl_ms is not None
    assert extended.ttl_ms > TTL_MS


def test_a_call_that_waits_for_the_client_gets_no_more_time() -> None:
    task = after(opened(), starts(), holds(DEPLOY))
    assert decisions.extend_ttl(task, task.attempt, at(TTL_S - 1)) == ()


@pytest.mark.parametrize("interval_ms", [50, 2_000, 600_000])
@pytest.mark.parametrize("end", [completes(seconds=TTL_S - 0.5), fails(seconds=TTL_S - 0.5)])
def test_a_result_that_comes_at_the_last_moment_is_kept_for_several_polls(
    interval_ms: int, end: Wish
) -> None:
    task = after(opened(poll_interval_ms=interval_ms), starts(), end)
    grace_ms = max(decisions.END_GRACE_MS, 3 * interval_ms)
    assert task.ttl_ms == TTL_MS - 500 + grace_ms
    assert not decisions.is_expired(task, at(TTL_S + 2.9 * interval_ms / 1000))


def test_what_expired_is_kept_for_several_polls_too() -> None:
    task = ends(opened(poll_interval_ms=600_000), TTL_S)
    assert task.ttl_ms == TTL_MS + 3 * 600_000


@pytest.mark.parametrize(
    "wishes",
    [
        [],
        [starts()],
        [starts(), holds(DEPLOY)],
        [starts(), asks(DEPLOY)],
        [starts(), cancels()],
        [starts(), loses()],
    ],
    ids=["queued", "running", "held", "parked", "cancelling", "lost"],
)
def test_what_is_removed_with_its_owner_ends_whatever_it_does(wishes: list[Wish]) -> None:
    task = after(opened(rerun_is_safe=True, ttl_ms=None), *wishes)
    removed = after(task, decisions.remove(task, at(10)))
    assert (removed.status, removed.worker, removed.outstanding) == (TaskStatus.FAILED, None, ())
    assert removed.error is not None
    assert removed.error["data"] == {"reason": "removed"}
    assert decisions.remove(removed, at(11)) == ()
