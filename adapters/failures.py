"""Foreign errors into ours, in one table. Nothing reads an error's text: types and SQLSTATE decide."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import psycopg_pool
from eventsourcing.persistence import PersistenceError

from ..domain import errors

STALE_VERSION = "OL409"  # raised by outlast.append_events
UNIQUE_VIOLATION = "23505"
IDEMPOTENCY_INDEX = "task_view_idempotency"

# Codes after which the same statement may succeed on another connection or a moment later.
_PASSING_CLASSES = ("08", "53", "57", "40", "55", "25")


def cause_of(error: BaseException) -> BaseException:
    """The driver's own error under one of the event-sourcing library's; any other error unchanged."""
    if isinstance(error, PersistenceError) and error.__cause__ is not None:
        return error.__cause__
    return error


def is_conflict(error: BaseException) -> bool:
    """True when the append met another one: a version was taken, or the task is no longer there."""
    cause = cause_of(error)
    return isinstance(cause, psycopg.Error) and cause.sqlstate in (STALE_VERSION, UNIQUE_VIOLATION)


def is_duplicate_opening(error: BaseException) -> bool:
    """True when the owner has already opened a task with this idempotency key."""
    cause = cause_of(error)
    return isinstance(cause, psycopg.Error) and cause.diag.constraint_name == IDEMPOTENCY_INDEX


def is_passing(error: BaseException) -> bool:
    """True for a lost connection, a full pool, a restart: trouble that ends without anybody changing the request."""
    cause = cause_of(error)
    if isinstance(cause, psycopg_pool.PoolTimeout | psycopg_pool.TooManyRequests | psycopg_pool.PoolClosed):
        return True
    if not isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    return cause.sqlstate is None or cause.sqlstate[:2] in _PASSING_CLASSES


@contextmanager
def as_ours() -> Iterator[None]:
    """Raise StoreUnavailable in place of what `is_passing` names; everything else is a defect and stays as it is."""
    try:
        yield
    except Exception as error:
        if is_passing(error):
            raise errors.StoreUnavailable from error
        raise
