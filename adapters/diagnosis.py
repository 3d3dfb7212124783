"""A store looked at from outside, on connections of its own. Nothing is written, nothing is kept.

What a pooler does shows only while somebody else uses it too: so a second connection sits in a
transaction when the first goes on.
"""

import secrets
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ..domain import errors
from ..domain.diagnosing import Manners, StoreFacts, StoreNotReached
from . import migrations, postgres

HEARD_S_MAX = 3.0
ANSWER_S_MAX = 5.0
NAMES = (
    "archive_mode",
    "autovacuum",
    "fsync",
    "full_page_writes",
    "statement_timeout",
    "synchronous_commit",
    "TimeZone",
    "wal_level",
)
_FACTS = (
    "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),"
    " (SELECT jsonb_object_agg(name, setting) FROM pg_settings WHERE name = ANY(%s)),"
    " to_regclass('outlast.migrations') IS NOT NULL"
)
_NO_STATEMENT = "26000"  # SQLSTATE invalid_sql_statement_name
_NO_ROOM = "53300"  # SQLSTATE too_many_connections
# The driver hears no SQLSTATE of who is turned away at the door, only the sentence.
_NO_ROOM_SAYS = ("too many connections", "too many clients", "remaining connection slots")


class PostgresDiagnosis:
    """Looks at the store of one URL. Raises StoreNotReached."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def facts(self) -> StoreFacts:
        """How it is set."""
        async with self._connected() as connection:
            cursor = await connection.execute(_FACTS, [list(NAMES)])
            ((version, is_standby, settings, has_schema),) = await cursor.fetchall()
            applied = await _numbers(connection) if has_schema else []
            ahead_s, unsure_s = await _clock(connection)
            room = await postgres.connections_allowed(self._url)
        wanted = [step.number for step in migrations.available()]
        return StoreFacts(version, settings, is_standby, room, applied, wanted, ahead_s, unsure_s)

    async def manners(self) -> Manners:
        """What a session is worth there."""
        async with self._connected() as first, self._connected() as second:
            hears = await self._hears(first, second)
            keeps = await self._keeps(first, second)
        async with self._connected() as first, self._connected() as second:
            return Manners(hears, keeps, await self._prepares(first, second))

    async def _hears(self, ear: Any, mouth: Any) -> bool:
        channel = f"outlast_doctor_{secrets.token_hex(8)}"
        await ear.execute(f"LISTEN {channel}")
        await mouth.execute("SELECT pg_notify(%s, '')", [channel])
        async for heard in ear.notifies(timeout=HEARD_S_MAX, stop_after=1):
            return heard.channel == channel
        return False

    async def _keeps(self, first: Any, second: Any) -> bool:
        """Whether the session is the same while another one is in a transaction."""
        word = secrets.token_hex(8)
        await first.execute("SELECT set_config('outlast.doctor', %s, false)", [word])
        try:
            async with second.transaction():
                await second.execute("SELECT 1")
                with postgres.answered_within(ANSWER_S_MAX, first):
                    cursor = await first.execute(
                        "SELECT current_setting('outlast.doctor', true)", prepare=False
                    )
                    return await cursor.fetchone() == (word,)
        except (psycopg.OperationalError, errors.StoreUnavailable):
            return False  # one session is all there is, and it is taken

    async def _prepares(self, first: Any, second: Any) -> bool:
        try:
            await first.execute("SELECT 41 + 1", prepare=True)
            async with second.transaction():
                await second.execute("SELECT 1")
                with postgres.answered_within(ANSWER_S_MAX, first):
                    await first.execute("SELECT 41 + 1", prepare=True)
        except (psycopg.OperationalError, errors.StoreUnavailable):
            return False
        except psycopg.Error as error:
            if error.sqlstate == _NO_STATEMENT or "prepared statement" in str(error):
                return False
            raise
        return True

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[psycopg.AsyncConnection[Any]]:
        try:
            settings = postgres.settings_of(self._url)
            made = await psycopg.AsyncConnection.connect(autocommit=True, **settings)
        except psycopg.OperationalError as error:
            raise StoreNotReached(_said(self._url, error)) from None
        except psycopg.Error:  # its message would show the URL, and the password in it
            raise StoreNotReached("database_url is not a URL of PostgreSQL") from None
        try:
            with with_reasons(self._url):  # what this role may not see, say
                yield made
        finally:
            await made.close()


@contextmanager
def with_reasons(url: str) -> Generator[None]:
    """Raise StoreNotReached, which says why, for whatever the store of this URL says no with."""
    try:
        yield
    except StoreNotReached:
        raise
    except errors.StoreUnavailable as error:
        if not isinstance(error.__cause__, psycopg.Error):
            raise
        raise StoreNotReached(_said(url, error.__cause__)) from None
    except psycopg.Error as error:
        raise StoreNotReached(_said(url, error)) from None


def _said(url: str, error: psycopg.Error) -> str:
    """The message in one line, and never the password."""
    text = " ".join(str(error).split())
    if error.sqlstate == _NO_ROOM or any(words in text for words in _NO_ROOM_SAYS):
        text = f"it gives this role no more connections (SQLSTATE {_NO_ROOM}): {text}"
    password = conninfo_to_dict(url).get("password")
    return text.replace(str(password), "…") if password else text


async def _numbers(connection: psycopg.AsyncConnection[Any]) -> list[int]:
    cursor = await connection.execute("SELECT number FROM outlast.migrations ORDER BY number")
    return [int(row[0]) for row in await cursor.fetchall()]


async def _clock(connection: psycopg.AsyncConnection[Any]) -> tuple[float, float]:
    """Of three looks the quickest, which says it best."""
    looks: list[tuple[float, float]] = []
    for _ in range(3):
        before = time.time()
        cursor = await connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        ((there,),) = await cursor.fetchall()
        after = time.time()
        looks.append(((after - before) / 2, float(there) - (before + after) / 2))
    unsure_s, ahead_s = min(looks)
    return ahead_s, unsure_s
