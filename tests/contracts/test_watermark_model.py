"""The safe watermark over random acknowledgement orders, against a plain list of what is open."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from outlast.tests.contracts.watermark import Watermark, safe

START = 10


@dataclass
class Endpoint:
    """Stores what arrives, with the cursor that it carries, as a receiver does."""

    stored: set[int] = field(default_factory=set[int])
    cursor: int = START


@dataclass
class World:
    """One subscription: the events that match, what was sent of them, and how it went."""

    mark: Watermark = field(default_factory=lambda: Watermark(START))
    matching: list[int] = field(default_factory=list[int])
    out: list[int] = field(default_factory=list[int])
    given_up: set[int] = field(default_factory=set[int])
    endpoint: Endpoint = field(default_factory=Endpoint)

    def read(self, step: int, matches: bool) -> None:
        position = self.mark.read_to + step
        if matches:
            self.mark = self.mark.queued(position)
            self.matching.append(position)
            self.out.append(position)
        else:
            self.mark = self.mark.passed(position)

    def arrive(self, which: int, acknowledged: bool) -> None:
        """The endpoint stores one; the acknowledgement may be lost, and then it comes again."""
        position = self.out[which % len(self.out)]
        carried = self.mark.carried_by(position)
        self.endpoint.stored.add(position)
        self.endpoint.cursor = carried
        if acknowledged:
            self.settle(position)

    def abandon(self, which: int) -> None:
        position = self.out[which % len(self.out)]
        self.given_up.add(position)
        self.settle(position)

    def settle(self, position: int) -> None:
        self.out.remove(position)
        self.mark = self.mark.settled(position)

    def check(self) -> None:
        highest = min(self.out) - 1 if self.out else self.mark.read_to
        assert self.mark.safe == highest
        for cursor in (self.mark.safe, self.endpoint.cursor):
            told = {position for position in self.matching if position <= cursor}
            assert told <= self.endpoint.stored | self.given_up


reads = st.tuples(st.just("read"), st.integers(1, 5), st.booleans())
arrivals = st.tuples(st.just("arrive"), st.integers(0, 99), st.booleans())
abandonments = st.tuples(st.just("abandon"), st.integers(0, 99), st.just(value=False))
histories = st.lists(reads | reads | arrivals | abandonments, max_size=60)


def played(history: list[tuple[str, int, bool]]) -> World:
    world = World()
    for kind, number, flag in history:
        before = world.mark.safe
        if kind == "read":
            world.read(number, flag)
        elif world.out and kind == "arrive":
            world.arrive(number, flag)
        elif world.out:
            world.abandon(number)
        assert world.mark.safe >= before
        world.check()
    return world


@given(histories)
def test_it_is_never_ahead_of_an_event_that_did_not_arrive_and_never_moves_back(
    history: list[tuple[str, int, bool]],
):
    played(history)


@given(histories, st.randoms())
def test_it_reaches_the_end_when_all_is_settled_in_whatever_order(
    history: list[tuple[str, int, bool]], order: random.Random
):
    world = played(history)
    left = list(world.out)
    order.shuffle(left)
    for position in left:
        assert world.mark.safe < world.mark.read_to
        world.arrive(world.out.index(position), acknowledged=True)
        world.check()
    assert world.mark.safe == world.mark.read_to
    assert world.mark.unsettled == frozenset()


@given(histories)
def test_rows_of_a_table_give_the_same(history: list[tuple[str, int, bool]]):
    world = played(history)
    assert safe(world.mark.read_to, set(world.out)) == world.mark.safe
    assert safe(world.mark.read_to, set(sorted(world.out)[:1])) == world.mark.safe


def test_an_event_carries_its_own_position_only_when_all_before_it_is_settled():
    mark = Watermark(10).queued(12).queued(15).passed(17).queued(20)
    assert [mark.carried_by(position) for position in (12, 15, 20)] == [14, 11, 11]
    mark = mark.settled(15)
    assert [mark.carried_by(position) for position in (12, 20)] == [19, 11]
    mark = mark.settled(12)
    assert mark.carried_by(20) == 20


def test_what_is_filtered_out_moves_it():
    assert Watermark(10).passed(99).safe == 99
    assert Watermark(10).queued(11).passed(99).safe == 10
    assert Watermark(10).queued(11).passed(99).settled(11).safe == 99


def test_settling_twice_or_what_was_never_out_changes_nothing():
    mark = Watermark(10).queued(12).queued(13)
    assert mark.settled(12).settled(12) == mark.settled(12)
    assert mark.settled(11) == mark


@pytest.mark.parametrize("position", [9, 10])
def test_reading_backwards_is_refused(position: int):
    for move in (Watermark(10).queued, Watermark(10).passed):
        with pytest.raises(ValueError, match="read before"):
            move(position)
