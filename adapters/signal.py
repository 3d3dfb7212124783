"""The signal on PostgreSQL: one LISTEN connection a process, reconnecting for ever.

It must be a direct connection to the primary (a transaction pooler drops LISTEN). A silent loss is
noticed by asking. While it is down nothing is lost: every waiter looks again by itself after its
own time, and all are woken when the connection is back.
"""

import asyncio
import logging

import psycopg

from ..domain import errors
from . import failures, postgres
from .bus import Bus

QUIET_S_MAX = 5.0  # the connection is asked this often whether it still lives
ANSWER_S_MAX = 3.0
RECONNECT_PAUSE_S = 0.5

_log = logging.getLogger("outlast.signal")


class PostgresSignal(Bus):
    """`Signal` fed by NOTIFY. `is_live` is False while nothing is heard."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._listening: asyncio.Task[None] | None = None
        self.is_live = False

    async def open(self) -> None:
        """Begin to listen; does not wait for the connection."""
        self._listening = asyncio.create_task(self._listen_for_ever(), name="outlast-signal")

    async def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    async def _listen_for_ever(self) -> None:
        while True:
            try:
                await self._listen()
            except (OSError, errors.StoreUnavailable, psycopg.Error) as error:
                if isinstance(error, psycopg.Error) and not failures.is_passing(error):
                    _log.exception("the signal connection failed for an unexpected reason")
                elif self.is_live:
                    _log.warning("the signal connection is lost; waiters look again by themselves")
            finally:
                self.is_live = False
            await asyncio.sleep(RECONNECT_PAUSE_S)

    async def _listen(self) -> None:
        settings = postgres.settings_of(self._url)
        connection = await psycopg.AsyncConnection.connect(autocommit=True, **settings)
        async with connection:
            with postgres.answered_within(ANSWER_S_MAX, connection):
                await connection.execute("LISTEN task_moved")
                await connection.execute("LISTEN task_runnable")
            self.is_live = True
            self.all_moved()
            while True:
                async for heard in connection.notifies(timeout=QUIET_S_MAX):
                    self._dispatch(heard)
                with postgres.answered_within(ANSWER_S_MAX, connection):
                    await connection.execute("SELECT 1")

    def _dispatch(self, heard: psycopg.Notify) -> None:
        if heard.channel == "task_runnable":
            self.queue_moved()
        else:
            task_id, _, version = heard.payload.partition(":")
            self.task_moved(task_id, int(version))
