"""The retry schedule: every class of answer, and the bounds that hold whatever the dice say."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from outlast.delivery.webhook.schedule import (
    ATTEMPTS_MAX,
    DELAY_S_MAX,
    DELAYS_S,
    Abandon,
    Answered,
    Category,
    Deactivate,
    Delivered,
    Outcome,
    RetryIn,
    Unanswered,
    category,
    next_step,
    retry_after_s,
    unsent,
)

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
MIDDLE = 0.5  # the chance that leaves a pause as it stands in the table
HOUR = 3600.0

NO_ANSWERS = [Category.CONNECTION_REFUSED, Category.TIMEOUT, Category.TLS_ERROR]
chances = st.floats(0, 1)
retry_afters = st.none() | st.floats(0, 1e9)
outcomes = st.builds(Answered, st.integers(200, 599), retry_afters) | st.builds(
    Unanswered, st.sampled_from(NO_ANSWERS)
)


def pause_s(attempts: int, outcome: Outcome, chance: float = MIDDLE) -> float:
    step = next_step(attempts, outcome, chance)
    assert isinstance(step, RetryIn)
    return step.seconds


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
@pytest.mark.parametrize("attempts", [1, ATTEMPTS_MAX])
def test_every_2xx_is_a_delivery(status: int, attempts: int):
    assert next_step(attempts, Answered(status), MIDDLE) == Delivered()


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_but_tried_again_as_a_client_fault(status: int):
    assert pause_s(1, Answered(status)) == 5
    assert category(Answered(status)) is Category.HTTP_4XX


@pytest.mark.parametrize("attempts", [1, ATTEMPTS_MAX])
def test_410_ends_the_subscription_and_413_only_the_event(attempts: int):
    assert next_step(attempts, Answered(410), MIDDLE) == Deactivate()
    assert next_step(attempts, Answered(413), MIDDLE) == Abandon()
    assert next_step(attempts, Answered(413, retry_after_s=1), MIDDLE) == Abandon()


@pytest.mark.parametrize(
    "outcome", [Answered(429), Answered(502), Answered(504), Unanswered(Category.TIMEOUT)]
)
@pytest.mark.parametrize("chance", [0, MIDDLE, 1])
def test_an_overloaded_endpoint_gets_a_minute_at_least(outcome: Outcome, chance: float):
    assert pause_s(1, outcome, chance) == 60
    assert pause_s(2, outcome, chance) == pause_s(2, Answered(500), chance)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 425, 500, 503, 599])
def test_every_other_answer_is_tried_again_by_the_table(status: int):
    pauses = [pause_s(attempts, Answered(status)) for attempts in range(1, ATTEMPTS_MAX)]
    assert pauses == [5, 300, 1800, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR]


@pytest.mark.parametrize("known", [Category.CONNECTION_REFUSED, Category.TLS_ERROR])
def test_no_connection_is_tried_again_by_the_table(known: Category):
    assert pause_s(1, Unanswered(known)) == 5


@given(attempts=st.integers(1, ATTEMPTS_MAX + 5), chance=chances)
def test_what_could_not_be_made_waits_as_long_as_what_failed(attempts: int, chance: float):
    assert unsent(attempts, chance) == next_step(attempts, Answered(500), chance)


def test_the_first_attempt_is_made_at_once_and_the_last_after_76_hours():
    assert DELAYS_S[0] == 0
    assert sum(DELAYS_S) == pytest.approx(75 * HOUR + 35 * 60 + 5)


@given(outcome=outcomes, chance=chances, beyond=st.integers(0, 5))
def test_after_the_last_attempt_there_is_none(outcome: Outcome, chance: float, beyond: int):
    step = next_step(ATTEMPTS_MAX + beyond, outcome, chance)
    assert isinstance(step, Delivered | Abandon | Deactivate)


def test_retry_after_is_honoured_up_to_twice_the_pause():
    assert pause_s(1, Answered(429, 120)) == 120
    assert pause_s(1, Answered(429, 90)) == 90
    assert pause_s(1, Answered(429, 30)) == 60
    assert pause_s(1, Answered(429, 1e9)) == 120
    assert pause_s(2, Answered(503, 500)) == 500
    assert pause_s(2, Answered(503, 601)) == 600
    assert pause_s(9, Answered(503, 1e9)) == DELAY_S_MAX


@given(st.integers(1, ATTEMPTS_MAX - 1), outcomes, chances)
def test_no_pause_leaves_its_bounds(attempts: int, outcome: Outcome, chance: float):
    step = next_step(attempts, outcome, chance)
    if isinstance(step, RetryIn):
        base = max(DELAYS_S[attempts], 60)
        assert 0.8 * DELAYS_S[attempts] <= step.seconds <= min(2 * base, DELAY_S_MAX)


@given(st.integers(1, ATTEMPTS_MAX - 1), chances)
def test_jitter_spreads_by_a_fifth_and_is_cut_after_it(attempts: int, chance: float):
    spread = DELAYS_S[attempts] * (0.8 + 0.4 * chance)
    assert pause_s(attempts, Answered(500), chance) == pytest.approx(min(spread, 24 * HOUR))


@given(
    st.integers(1, ATTEMPTS_MAX - 1),
    st.sampled_from([429, 503, 504]),
    st.floats(0, 1e6),
    chances,
)
def test_nothing_is_sent_sooner_than_asked_unless_that_is_beyond_twice_the_pause(
    attempts: int, status: int, asked_s: float, chance: float
):
    pause = pause_s(attempts, Answered(status, asked_s), chance)
    assert pause >= min(asked_s, 2 * DELAYS_S[attempts], DELAY_S_MAX)


@pytest.mark.parametrize(("attempts", "chance"), [(0, 0.5), (-1, 0.5), (1, -0.1), (1, 1.1)])
def test_a_step_without_an_attempt_or_with_a_strange_chance_is_refused(
    attempts: int, chance: float
):
    with pytest.raises(ValueError, match="chance"):
        next_step(attempts, Answered(500), chance)


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (Answered(204), None),
        (Answered(302), "http_4xx"),
        (Answered(410), "http_4xx"),
        (Answered(500), "http_5xx"),
        (Unanswered(Category.CONNECTION_REFUSED), "connection_refused"),
        (Unanswered(Category.TIMEOUT), "timeout"),
        (Unanswered(Category.TLS_ERROR), "tls_error"),
    ],
)
def test_a_failure_is_told_by_one_of_six_words(outcome: Outcome, word: str | None):
    assert category(outcome) == word


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("-5", None),
        ("1.5", None),
        ("9" * 400, None),
        ("0", 0),
        ("120", 120),
        (" 120 ", 120),
        ("Sun, 29 Nov 2026 12:02:00 GMT", 120),
        ("Sun, 29 Nov 2026 11:00:00 GMT", 0),
        ("Sun, 29 Nov 2026 12:02:00", 120),
        ("Sun, 99 Nov 2026 12:02:00 GMT", None),
        ("Sun, 29 Nov 2026 12:02:00 +" + "9" * 40, None),
        ("Sun, 29 Nov 2026 12:02:00 +9999999999", None),
    ],
)
def test_retry_after_is_read_in_both_its_forms(header: str | None, seconds: float | None):
    assert retry_after_s(header, NOW) == seconds


@given(st.text(max_size=40))
def test_no_retry_after_header_breaks_the_reader(header: str):
    seconds = retry_after_s(header, NOW)
    assert seconds is None or seconds >= 0


@given(st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1)))  # noqa: DTZ001 - hypothesis wants bounds without a zone
def test_a_date_gives_the_time_until_it(naive: datetime):
    at = naive.replace(tzinfo=UTC, microsecond=0)
    header = at.strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert retry_after_s(header, NOW) == max(0.0, (at - NOW) / timedelta(seconds=1))
