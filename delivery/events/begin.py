"""Where a subscription begins: one rule for poll, stream and webhook (the draft's cursors)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ...domain import errors
from ...domain.push import Filter, OwnerEvents
from .cursors import Cursors

REPLAY_MAX = 10_000  # of all events of an owner; those of named tasks are few
NO_BOUND = 2**31 - 1
AGE_MS_MAX = 10 * 365 * 86_400_000


@dataclass(frozen=True)
class Begin:
    """Events after `position` are told. With `is_truncated`, some before it may have been missed.

    `is_fresh` is True when the client gave no cursor: from now on, and nothing was missed. Up to
    `newest` everything has happened: a later reader who finds nothing more may stand there. Up to
    `removed_to` something may have been removed.
    """

    position: int
    newest: int
    removed_to: int
    is_truncated: bool = False
    is_fresh: bool = False


async def begin(  # noqa: PLR0913, PLR0917 - what a request leads to, from all that it rests on
    events: OwnerEvents,
    cursors: Cursors,
    owner: str,
    wanted: Filter,
    params: Mapping[str, Any],
    now: datetime,
) -> Begin:
    """Where a request's `cursor` and `maxAgeMs` lead. Raises InvalidCall.

    A cursor that is not ours, or of another log, leads to the oldest event that is stored; one
    from the future to the newest.
    """
    given, max_age_ms = params.get("cursor"), params.get("maxAgeMs")
    if not isinstance(given, str | None):
        raise errors.InvalidCall("cursor must be a string or null")
    age = _age(max_age_ms)
    head = await events.head(owner)
    # The head goes back when its task is removed. What the client knows does not.
    removed = await events.removed_to(owner)
    newest = max(head, removed)
    if given is None:
        return Begin(newest, newest, removed, is_fresh=True)
    known = cursors.open(owner, given)
    position = known or 0
    if position >= newest:
        is_odd = known is None or position > newest
        return Begin(newest, newest, removed, is_truncated=is_odd)
    start = await _floor(events, owner, wanted, position, None if age is None else now - age)
    # Named tasks are either stored whole or not at all.
    truncated = known is None or (wanted.task_ids is None and position < removed)
    truncated = truncated or await _misses(events, owner, wanted, position, start)
    return Begin(start, newest, removed, is_truncated=truncated)


async def has_lost(events: OwnerEvents, owner: str, wanted: Filter, begun: Begin) -> bool:
    """Whether events after it were removed since it was judged. Named tasks are stored whole.

    To be asked after the read: what that has not seen any more is noted by then.
    """
    if wanted.task_ids is not None:
        return False
    return await events.removed_to(owner) > max(begun.position, begun.removed_to)


async def _floor(
    events: OwnerEvents, owner: str, wanted: Filter, position: int, since: datetime | None
) -> int:
    """The position, or a later one when what lies between is too old or too much."""
    if wanted.task_ids is not None and since is None:
        return position
    newest = REPLAY_MAX if wanted.task_ids is None else NO_BOUND
    return await events.floor(owner, wanted, position, since, newest)


async def _misses(
    events: OwnerEvents, owner: str, wanted: Filter, position: int, start: int
) -> bool:
    """Whether something that was wanted lies between the cursor and the start."""
    if start == position:
        return False
    passed = await events.after(owner, wanted, position, 1)
    return bool(passed.events) and passed.events[0].position <= start


def _age(given: Any) -> timedelta | None:
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise errors.InvalidCall("maxAgeMs must be a number of milliseconds, 0 or more")
    return timedelta(milliseconds=min(given, AGE_MS_MAX))
