"""Task ids: what is made together lies together, and still nobody can guess one."""

import re

import pytest

from outlast.service.ids import OWN_BYTES, SHARED_S, TaskIds

SHARED = 4  # characters
MANY = 2_000


@pytest.mark.promise("task-ids-cannot-be-guessed")
def test_an_id_is_url_safe_and_has_more_random_bits_of_its_own_than_anybody_can_try() -> None:
    ids = TaskIds(lambda: 0.0)
    made = [ids.new() for _ in range(MANY)]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", each) for each in made)
    assert OWN_BYTES * 8 >= 128
    own = [each[SHARED:] for each in made]
    assert len(set(own)) == MANY
    # Each character of it is random: in so many ids it takes (nearly) all of its values.
    for place, characters in enumerate(zip(*own, strict=True)):
        last = place == len(own[0]) - 1
        assert len(set(characters)) >= (16 if last else 60), place


def test_ids_of_the_same_moment_share_their_beginning() -> None:
    now = 100.0
    ids = TaskIds(lambda: now)
    first = {ids.new()[:SHARED] for _ in range(MANY)}
    now += SHARED_S - 0.1
    assert {ids.new()[:SHARED]} == first
    assert len(first) == 1


def test_the_shared_beginning_changes_by_the_clock_and_is_another_in_each_process() -> None:
    now = 0.0
    ids, others = TaskIds(lambda: now), TaskIds(lambda: now)
    seen: list[str] = []
    for _ in range(50):
        seen += [ids.new()[:SHARED], others.new()[:SHARED]]
        now += SHARED_S
    assert len(set(seen)) >= len(seen) - 1  # by chance two may be alike, once in some thousand runs
