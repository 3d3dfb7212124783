"""One task, watched by several ways at once: how long after each change every way tells of it."""

import statistics
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, cast

import anyio
from rich.table import Table
from rich.text import Text

from ....domain import errors
from ....domain.clienting import TaskState, instant_of
from ...client import TaskClient
from .reach import Via
from .text import line

WAYS: Sequence[Via] = ("poll", "listen", "websocket", "webhook")
LAST_S_MAX = 5.0  # what a way gets to tell of the end once another one has


class Heard:
    """Which way told of which change, and how late: the server's stamp against our clock.

    The two are one clock on one machine; elsewhere the figures say how the clocks differ, too.
    """

    def __init__(self, ways: Sequence[Via]) -> None:
        self._delays_ms: dict[Via, dict[int, float]] = {way: {} for way in ways}
        self._changes: dict[int, str] = {}
        self._failures: dict[Via, str] = {}
        self._began: dict[Via, anyio.Event] = {way: anyio.Event() for way in ways}

    @property
    def delays_ms(self) -> Mapping[Via, Mapping[int, float]]:
        """By way and version."""
        return self._delays_ms

    async def all_watch(self) -> None:
        """Return once every way has told a first state, or has failed."""
        for began in self._began.values():
            await began.wait()

    def told(self, way: Via, state: TaskState, now: datetime, began: datetime) -> None:
        """A way has told a state. What had changed before it began to watch says nothing of it."""
        self._began[way].set()
        stamp = instant_of(state.task.get("lastUpdatedAt"))
        if state.version is None or stamp < began:
            return
        message = state.task.get("statusMessage") or ""
        self._changes.setdefault(state.version, line(f"{state.task['status']}  {message}", 60))
        delay_ms = max(0.0, (now - stamp).total_seconds() * 1000)
        self._delays_ms[way].setdefault(state.version, delay_ms)

    def failed(self, way: Via, error: errors.OutlastError) -> None:
        """A way has told nothing more."""
        self._failures[way] = line(error)
        self._began[way].set()

    def table(self) -> Table:
        """A row a change, a column a way, and the median of each below."""
        table = Table(title="The same task, watched in four ways: how soon each change was told")
        table.add_column("change")
        for way in self._delays_ms:
            table.add_column(way, justify="right")
        for version, change in sorted(self._changes.items()):
            cells = [_told(delays.get(version)) for delays in self._delays_ms.values()]
            table.add_row(Text(change), *cells)
        table.add_section()
        medians = [_median(delays.values()) for delays in self._delays_ms.values()]
        table.add_row("median", *medians, style="bold")
        if self._failures:
            table.caption = "; ".join(f"{way}: {why}" for way, why in self._failures.items())
        return table


@asynccontextmanager
async def watched(url: str, task_id: str, ways: Sequence[Via] = WAYS) -> AsyncGenerator[Heard]:
    """Watch the task by each way meanwhile. At the end each may still tell of it, for a while."""
    heard = Heard(ways)
    async with anyio.create_task_group() as tasks:
        scopes = [anyio.CancelScope() for _ in ways]
        for way, scope in zip(ways, scopes, strict=True):
            tasks.start_soon(_watch, url, task_id, way, heard, scope)
        yield heard
        for scope in scopes:
            scope.deadline = anyio.current_time() + LAST_S_MAX


async def _watch(url: str, task_id: str, way: Via, heard: Heard, scope: anyio.CancelScope) -> None:
    with scope:
        try:
            async with TaskClient.connect(url, via=way, journal=None) as client:
                began: datetime | None = None
                async with aclosing(client.task(task_id).updates()) as states:
                    async for state in states:
                        now = datetime.now(UTC)
                        began = began or now
                        heard.told(way, state, now, began)
        except errors.OutlastError as error:
            heard.failed(way, error)


def _told(delay_ms: float | None) -> str:
    return "-" if delay_ms is None else f"{delay_ms:.0f} ms"


def _median(delays_ms: Any) -> str:
    found = sorted(cast(Sequence[float], delays_ms))
    return _told(statistics.median(found) if found else None)
