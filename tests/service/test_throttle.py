"""Rates: what a bucket lets through, how much memory it takes, and that it asks nobody else."""

from collections import Counter
from dataclasses import dataclass

import pytest

from outlast.domain import errors
from outlast.service.config import Limits, parse
from outlast.service.throttle import SWEEP_AT_LEAST, Buckets, Throttle

pytestmark = pytest.mark.promise("limits-have-names")

MINUTE_S = 60.0


@dataclass
class Clock:
    """A clock that goes when it is told to."""

    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


def taken(buckets: Buckets, times: int, name: str = "a") -> int:
    """How many of so many tries at once are let through."""
    return sum(buckets.take(name) == 0 for _ in range(times))


def test_a_minutes_worth_may_come_at_once_and_then_as_fast_as_the_bucket_fills():
    clock = Clock()
    buckets = Buckets(60, clock)
    assert taken(buckets, 100) == 60
    clock.now += 10
    assert taken(buckets, 100) == 10
    clock.now += 10 * MINUTE_S
    assert taken(buckets, 100) == 60


def test_who_waits_as_long_as_it_is_told_gets_in_and_not_before():
    clock = Clock()
    buckets = Buckets(30, clock)
    taken(buckets, 30)
    wait_s = buckets.take("a")
    assert abs(wait_s - 2.0) < 1e-6
    clock.now += wait_s * 0.9
    assert buckets.take("a") > 0
    clock.now += wait_s * 0.1
    assert buckets.take("a") == 0


def test_one_bucket_is_not_anothers_whatever_the_names():
    buckets = Buckets(1, Clock())
    pairs = [("a", "b"), ("ab",), ("a",), ("b",), ("a", "c"), ("b", "b"), ("\ud800",)]
    assert [buckets.take(*names) for names in pairs] == [0.0] * len(pairs)


def test_a_poll_every_100_ms_passes_for_ever():
    clock = Clock()
    throttle = Throttle(Limits().calls_per_minute, Limits().polls_per_minute, clock)
    for _ in range(6_000):  # every 100 ms for ten minutes
        throttle.called("owner")
        throttle.polled("owner", "task")
        clock.now += 0.1


def test_what_all_may_ask_is_a_limit_of_its_own_and_a_refused_owner_takes_nothing_of_it():
    throttle = Throttle(2, None, Clock(), calls_per_minute_in_all=3)
    met: list[str] = []
    for owner in ("a", "a", "a", "b", "b", "c"):
        try:
            throttle.called(owner)
        except errors.TooManyRequests as error:
            met.append(f"{owner}: {error.limit}")
    assert met == [
        "a: calls_per_minute",
        "b: calls_per_minute_in_all",
        "c: calls_per_minute_in_all",
    ]


def test_no_limit_is_no_bucket():
    buckets = Buckets(None, Clock())
    assert taken(buckets, 10_000) == 10_000
    assert len(buckets) == 0


def test_idle_buckets_are_dropped_and_there_are_never_more_than_so_many():
    clock = Clock()
    buckets = Buckets(60, clock, keys_max=5_000)
    for number in range(20_000):
        buckets.take(str(number))
        assert len(buckets) <= 5_001
    clock.now += MINUTE_S
    for number in range(SWEEP_AT_LEAST):
        buckets.take(f"later {number}")
    assert len(buckets) <= 2 * SWEEP_AT_LEAST


def test_a_busy_bucket_survives_those_who_come_once():
    buckets = Buckets(10, Clock(), keys_max=100)
    let_through = 0
    for number in range(1_500):
        buckets.take(str(number))
        if number % 50 == 0:
            let_through += taken(buckets, 1)
    assert let_through == 10


def test_every_refusal_that_names_a_limit_is_counted_and_a_tools_own_is_not():
    throttle = Throttle(1, 1, Clock())
    for _ in range(3):
        for act in (lambda: throttle.called("a"), lambda: throttle.polled("a", "t")):
            try:
                act()
            except errors.TooManyRequests as error:
                throttle.refused(error)
    throttle.refused(errors.QuotaExceeded("tasks_per_owner", 5))
    throttle.refused(errors.TooManySubscriptions(5))
    throttle.refused(errors.UpstreamFault(-1, "quota", {"limit": "a tool's own"}))
    throttle.refused(ValueError("no limit"))
    named = {"tasks_per_owner": 1, "subscriptions": 1}
    assert throttle.refusals == Counter(calls_per_minute=2, polls_per_minute=2, **named)


def test_who_is_told_a_short_interval_may_keep_to_it():
    slow, quick = '[defaults]\npoll_interval = "2s"\n', '[tools.a]\npoll_interval = "20ms"\n'
    assert parse(slow, "f").polls_per_minute == 1_200
    assert parse(slow + quick, "f").polls_per_minute == 6_000
    assert parse('[quotas]\npolls_per_minute = "unlimited"\n' + quick, "f").polls_per_minute is None


def test_the_quotas_are_read_with_sizes_and_with_a_word_for_none():
    limits = parse(
        '[quotas]\nbytes = "2MiB"\ntasks = 7\nworking_per_owner = "unlimited"', "f"
    ).limits
    assert (limits.bytes, limits.tasks, limits.working_per_owner) == (2 * 1024**2, 7, None)
    assert (limits.tasks_per_owner, limits.bytes_per_owner) == (100_000, 1024**3)
    assert limits.quotas.most == (100_000, None, 10_000, 1024**3, 7, None, None, 2 * 1024**2)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tasks = 0", 'must be a whole number from 1 on, or "unlimited"'),
        ("calls_per_minute = true", 'must be a whole number from 1 on, or "unlimited"'),
        ('polls_per_minute = "many"', 'must be a whole number from 1 on, or "unlimited"'),
        ('bytes = "1GB"', 'must be bytes, a size like "512MiB" or "1GiB", or "unlimited"'),
        ('bytes = "0KiB"', 'must be bytes, a size like "512MiB" or "1GiB", or "unlimited"'),
        ("task = 5", "unknown setting; there are tasks_per_owner, working_per_owner, "),
    ],
)
def test_a_mistake_is_named_with_its_line(line: str, said: str):
    with pytest.raises(errors.ConfigurationError) as mistake:
        parse(f"[quotas]\n{line}", "f")
    assert str(mistake.value).startswith(f"f:2: quotas.{line.split(maxsplit=1)[0]}: {said}")
