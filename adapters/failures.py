"""Foreign errors into ours, in one table. Types and SQLSTATE decide; no error's text is read."""

from collections.abc import Generator
from contextlib import contextmanager

import psycopg
import psycopg_pool
from eventsourcing.persistence import PersistenceError

from ..domain import errors

STALE_VERSION = "OL409"  # raised by outlast.append_events
TOO_MANY_SUBSCRIPTIONS = "OL429"  # raised by outlast.put_subscription
QUOTA_EXCEEDED = "OL430"  # raised by outlast.append_events
UNIQUE_VIOLATION = "23505"
IDEMPOTENCY_INDEX = "task_view_idempotency"

# Codes after which the same statement may succeed on another connection or a moment later.
_PASSING_CLASSES = ("08", "53", "57", "40", "55", "25")
_LOST_CLASSES = ("08", "57")
_POOL_ERRORS = (
    psycopg_pool.PoolTimeout,
    psycopg_pool.TooManyRequests,
    psycopg_pool.PoolClosed,
)


def cause_of(error: BaseException) -> BaseException:
    """The driver's own error under one of the library's; any other error unchanged."""
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


def quota_of(error: BaseException) -> int | None:
    """The number of the quota that an opening met, in the order of `Quotas.most`; else None."""
    cause = cause_of(error)
    if not isinstance(cause, psycopg.Error) or cause.sqlstate != QUOTA_EXCEEDED:
        return None
    return int(cause.diag.constraint_name or 0)


def is_passing(error: BaseException) -> bool:
    """True for a lost connection, a full pool, a restart: trouble that ends by itself."""
    cause = cause_of(error)
    if not isinstance(cause, psycopg.Error):
        return False
    if cause.sqlstate is None:  # not an answer of the server: the connection or its pool failed
        return isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError)
    return cause.sqlstate[:2] in _PASSING_CLASSES


def is_lost_connection(error: BaseException) -> bool:
    """True when this connection died; another one may be good at once."""
    cause = cause_of(error)
    if not isinstance(cause, psycopg.OperationalError) or isinstance(cause, _POOL_ERRORS):
        return False
    return cause.sqlstate is None or cause.sqlstate[:2] in _LOST_CLASSES


@contextmanager
def as_ours() -> Generator[None, None, None]:
    """Raise StoreUnavailable for what `is_passing` names; all else is a defect and stays."""
    try:
        yield
    except Exception as error:
        if is_passing(error):
            raise errors.StoreUnavailable from error
        raise
