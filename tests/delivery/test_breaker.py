"""The circuit breaker of one endpoint, over minutes and days that no test waits for."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from outlast.delivery.webhook.breaker import (
    FAILURES_TO_OPEN,
    OPEN_S_MAX,
    SUSPEND_FAILURES_MIN,
    Breaker,
    BreakerState,
)
from outlast.delivery.webhook.schedule import Answered, Category, Outcome, Unanswered

START = datetime(2026, 11, 29, 12, tzinfo=UTC)
FAILURE = Answered(500)
SUCCESS = Answered(204)
TIMEOUT = Unanswered(Category.TIMEOUT)

outcomes = st.sampled_from(
    [SUCCESS, FAILURE, TIMEOUT, Answered(404), Answered(413), Answered(429, 90), Answered(410)]
)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def after(*results: Outcome) -> Breaker:
    breaker = Breaker()
    for result in results:
        breaker = breaker.after(result, START)
    return breaker


def test_a_new_endpoint_is_tried():
    assert Breaker().state(START) is BreakerState.CLOSED
    assert Breaker().may_try(START)
    assert Breaker().trying(START) == Breaker()


def test_five_failures_in_a_row_open_it_and_four_do_not():
    assert after(*[FAILURE] * 4).may_try(START)
    opened = after(*[FAILURE] * 5)
    assert opened.state(START) is BreakerState.OPEN
    assert not opened.may_try(at(59.9))
    assert opened.may_try(at(60))


@pytest.mark.parametrize("life", [SUCCESS, Answered(413)])
def test_any_sign_of_life_starts_the_count_again(life: Outcome):
    assert after(*[FAILURE] * 4, life) == Breaker()
    assert after(*[FAILURE] * 4, life, *[FAILURE] * 4).may_try(START)


def test_two_signs_of_overload_open_it():
    assert after(TIMEOUT).may_try(START)
    assert not after(TIMEOUT, TIMEOUT).may_try(START)
    assert not after(FAILURE, Answered(502)).may_try(START)


def test_an_endpoint_that_asks_for_time_gets_it_at_once_and_an_hour_at_most():
    assert not after(Answered(429)).may_try(at(59))
    asked = after(Answered(503, 90))
    assert (asked.may_try(at(89)), asked.may_try(at(90))) == (False, True)
    assert after(Answered(429, 1e9)).may_try(at(OPEN_S_MAX))


def test_half_open_lets_one_probe_through():
    half = after(*[FAILURE] * 5)
    assert half.state(at(60)) is BreakerState.HALF_OPEN
    probing = half.trying(at(60))
    assert not probing.may_try(at(61))
    assert probing.after(SUCCESS, at(62)) == Breaker()


def test_a_probe_whose_sender_died_does_not_block_the_endpoint_for_ever():
    probing = after(*[FAILURE] * 5).trying(at(60))
    assert (probing.may_try(at(89)), probing.may_try(at(90))) == (False, True)


def test_each_failed_probe_doubles_the_pause_up_to_an_hour():
    breaker, pauses, now = after(*[FAILURE] * 5), [], 0.0
    for _ in range(8):
        assert breaker.open_until is not None
        pauses.append((breaker.open_until - at(now)).total_seconds())
        now = (breaker.open_until - START).total_seconds()
        assert breaker.may_try(at(now))
        breaker = breaker.trying(at(now)).after(FAILURE, at(now))
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_stragglers_that_fail_while_it_is_open_do_not_prolong_the_pause():
    opened = after(*[FAILURE] * 5)
    assert opened.after(TIMEOUT, at(1)).open_until == opened.open_until
    assert opened.after(SUCCESS, at(1)) == Breaker()


def test_only_many_failures_over_a_whole_day_suspend():
    day = 86_400
    quick = after(*[FAILURE] * 100)
    assert not quick.is_to_be_suspended(at(day - 1))
    assert quick.is_to_be_suspended(at(day))
    assert not after(*[FAILURE] * (SUSPEND_FAILURES_MIN - 1)).is_to_be_suspended(at(9 * day))
    assert not quick.after(SUCCESS, at(day)).is_to_be_suspended(at(day))
    assert not Breaker().is_to_be_suspended(at(day))


@given(st.lists(st.tuples(outcomes, st.floats(0, 7200)), max_size=60))
def test_whatever_happens_it_is_tried_again_within_an_hour(history: list[tuple[Outcome, float]]):
    breaker, now, in_a_row = Breaker(), START, 0
    since: datetime | None = None
    for outcome, pause_s in history:
        now += timedelta(seconds=pause_s)
        if breaker.may_try(now):
            breaker = breaker.trying(now)
        breaker = breaker.after(outcome, now)
        lives = outcome in {SUCCESS, Answered(413)}
        in_a_row, since = (0, None) if lives else (in_a_row + 1, since or now)
        assert (breaker.failures, breaker.failing_since) == (in_a_row, since)
        if in_a_row >= FAILURES_TO_OPEN:
            assert breaker.state(now) is not BreakerState.CLOSED
        assert breaker.may_try(now + timedelta(seconds=OPEN_S_MAX))
