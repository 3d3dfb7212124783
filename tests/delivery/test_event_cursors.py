"""Cursors: sealed positions that nobody else can read, make or use."""

import re
import string

import pytest
from hypothesis import given, strategies as st

from outlast.delivery.events.cursors import Cursors

KEY = "a key of at least thirty-two characters"
POSITIONS = st.integers(min_value=0, max_value=2**63 - 1)
OWNERS = st.text(max_size=40)


@given(owner=OWNERS, position=POSITIONS, epoch=st.integers(-(2**63), 2**63 - 1))
def test_what_was_sealed_opens_again_and_is_plain_text(owner: str, position: int, epoch: int):
    cursor = Cursors(KEY, epoch).seal(owner, position)
    assert re.fullmatch(r"v1\.[A-Za-z0-9_-]{43}", cursor)
    assert Cursors(KEY, epoch).open(owner, cursor) == position


def test_the_same_position_has_always_the_same_cursor():
    assert Cursors(KEY, 1).seal("alice", 7) == Cursors(KEY, 1).seal("alice", 7)


@given(position=POSITIONS, other=POSITIONS)
def test_two_positions_do_not_show_which_is_later(position: int, other: int):
    cursors = Cursors(KEY, 1)
    one, two = cursors.seal("alice", position), cursors.seal("alice", other)
    # All but the mark of the form differs from the first character on, however near they lie.
    assert (one == two) == (position == other)
    if one != two:
        same = sum(a == b for a, b in zip(one[3:], two[3:], strict=True))
        assert same < 15


@pytest.mark.parametrize(
    "stranger",
    [
        Cursors(KEY, 2).seal("alice", 7),
        Cursors(KEY + "!", 1).seal("alice", 7),
        Cursors(KEY, 1).seal("bob", 7),
        "",
        "v1.",
        "v1.7",
        "v1.é",
        "v2." + Cursors(KEY, 1).seal("alice", 7)[3:],
        Cursors(KEY, 1).seal("alice", 7) + "=",
        Cursors(KEY, 1).seal("alice", 7) + "\n",
        " " + Cursors(KEY, 1).seal("alice", 7),
        "v1." + "A" * 100_000,
        "\ud800",
    ],
)
def test_a_cursor_of_another_log_key_owner_or_form_opens_to_nothing(stranger: str):
    assert Cursors(KEY, 1).open("alice", stranger) is None


@given(
    place=st.integers(3, 45), letter=st.sampled_from(string.ascii_letters + string.digits + "-_")
)
def test_a_cursor_with_one_letter_changed_opens_to_nothing(place: int, letter: str):
    cursors = Cursors(KEY, 1)
    cursor = cursors.seal("alice", 7)
    forged = cursor[:place] + letter + cursor[place + 1 :]
    assert cursors.open("alice", forged) == (7 if forged == cursor else None)
