"""The signal on PostgreSQL: one LISTEN connection a process, reconnecting for ever.

It must be a direct connection to the primary (a transaction pooler drops LISTEN). A silent loss is
noticed by asking. What it may have missed is found by one look at the versions of all watched
tasks, rarely while it is live and every second while it is down, so that ten thousand idle waiters
cost one statement and not ten thousand.
"""

import asyncio
import contextlib
import logging
import time
from typing import Any

import psycopg

from ..domain import errors
from . import failures, postgres
from .bus import Bus

QUIET_S_MAX = 5.0  # the connection is asked this often whether it still lives
ANSWER_S_MAX = 3.0
RECONNECT_PAUSE_S = 0.5
LOOK_LIVE_S = 30.0
LOOK_DOWN_S = 1.0
LOOK_BATCH = 1_000
DIGITS_MAX = 19  # of a version: anybody may say more, and very many cannot be read at all

_log = logging.getLogger("outlast.signal")


class PostgresSignal(Bus):
    """`Signal` fed by NOTIFY. `is_live` is False while nothing is heard."""

    def __init__(self, url: str, database: postgres.Database) -> None:
        super().__init__()
        self._url, self._database = url, database
        self._tasks: list[asyncio.Task[None]] = []
        self._deaf = asyncio.Event()
        self._deaf.set()
        self._proven = time.monotonic()  # up to then all that was told has been heard

    @property
    def is_live(self) -> bool:
        """False while nothing is heard."""
        return not self._deaf.is_set()

    @property
    def lag_s(self) -> float:
        """How far back the last moment lies up to which it certainly has heard all."""
        return time.monotonic() - self._proven

    async def open(self) -> None:
        """Begin to listen; does not wait for the connection."""
        self._tasks = [
            asyncio.create_task(self._listen_for_ever(), name="outlast-signal"),
            asyncio.create_task(self._look_for_ever(), name="outlast-signal-look"),
        ]

    async def close(self) -> None:
        """Stop listening."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _look_for_ever(self) -> None:
        while True:
            await self._until_a_look_is_due()
            try:
                await self._look_at_all()
            except errors.StoreUnavailable:
                pass
            except Exception:  # noqa: BLE001 - the edge: one failure must not end all looking
                _log.exception("a look at the watched tasks stumbled; there will be others")

    async def _look_at_all(self) -> None:
        watched = self.watched()
        for first in range(0, len(watched), LOOK_BATCH):
            await self._look(watched[first : first + LOOK_BATCH])
        if not self.is_live:
            self.unseen_moved()

    async def _until_a_look_is_due(self) -> None:
        if self.is_live:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_LIVE_S):
                    await self._deaf.wait()
        await asyncio.sleep(LOOK_DOWN_S)

    async def _look(self, task_ids: list[str]) -> None:
        rows = await self._database.rows(
            "SELECT task_id, version FROM outlast.task_view WHERE task_id = ANY(%s)", task_ids
        )
        versions = dict(rows)
        for task_id in task_ids:
            # A task that is stored no more has moved too, and its waiters find out by looking.
            self.found(task_id, versions.get(task_id, 0))

    async def _listen_for_ever(self) -> None:
        while True:
            try:
                await self._listen()
            except (OSError, errors.StoreUnavailable, psycopg.Error) as error:
                if isinstance(error, psycopg.Error) and not failures.is_passing(error):
                    _log.exception("the signal connection failed for an unexpected reason")
                elif self.is_live:
                    _log.warning("the signal connection is lost; waiters look again by themselves")
            except Exception:  # noqa: BLE001 - the edge: who ends here would be deaf for ever
                _log.exception("the signal stumbled; it listens anew")
            finally:
                self._deaf.set()
            await asyncio.sleep(RECONNECT_PAUSE_S)

    async def _listen(self) -> None:
        settings = postgres.settings_of(self._url)
        connection = await psycopg.AsyncConnection.connect(autocommit=True, **settings)
        async with connection:
            connection.add_notify_handler(self._notified)  # for what comes with an answer
            with postgres.answered_within(ANSWER_S_MAX, connection):
                await connection.execute("LISTEN task_moved")
                await connection.execute("LISTEN task_runnable")
                await connection.execute("LISTEN webhook_due")
            self._deaf.clear()
            self._proven = time.monotonic()
            self.all_moved()
            while True:
                await self._hear(connection)
                asked = time.monotonic()  # what is told after that may come behind the answer
                with postgres.answered_within(ANSWER_S_MAX, connection):
                    await connection.execute("SELECT 1")
                self._proven = asked

    async def _hear(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Dispatch what comes, for QUIET_S_MAX. Raises OperationalError when the connection ends.

        The driver's own wait wakes ten times a second to see that there is nothing to read.
        """
        loop, wire = asyncio.get_running_loop(), connection.pgconn
        end: asyncio.Future[None] = loop.create_future()
        number = wire.socket  # once the connection is lost, it tells this no more

        def read() -> None:
            try:
                wire.consume_input()
                while news := wire.notifies():
                    self._dispatch(news.relname.decode(), news.extra.decode())
            except Exception as error:  # noqa: BLE001 - raised where the end is waited for
                loop.remove_reader(number)
                if not end.done():
                    end.set_exception(error)

        loop.add_reader(number, read)
        try:
            async with asyncio.timeout(QUIET_S_MAX):
                await end
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(number)

    def _notified(self, told: psycopg.Notify) -> None:
        self._dispatch(told.channel, told.payload)

    def _dispatch(self, channel: str, payload: str) -> None:
        if channel == "task_runnable":
            self.queue_moved()
        elif channel == "webhook_due":
            self.outbox_moved()
        else:
            task_id, _, rest = payload.partition(":")
            version, _, owner = rest.partition(":")
            if _is_number(version):  # anybody may notify on this channel
                self.moved(task_id, int(version))
            if owner:
                self.owner_moved(owner)


def _is_number(text: str) -> bool:
    return len(text) <= DIGITS_MAX and text.isascii() and text.isdecimal()
