"""The parent of several processes that serve one port: starts them, keeps them, ends them.

It serves nothing itself. A process that ends by itself is started again; one that cannot start
ends the service. When the parent is gone, its processes see the end of their lines and leave too:
the kernel's own signal for that would come when a thread of the parent ends.
"""

import asyncio
import itertools
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from ..domain import errors
from .hosting import SharedPort
from .siblings import FIGURES_S_MAX, Figures, Line

START_S_MAX = 60.0  # a process that does not serve within this is ended, and counts as failed
START_TRIES_MAX = 3  # ends in a row before it served, of one process
STEADY_S = 60.0  # one that ends after it has served for so long is started at once
PAUSE_S, PAUSE_S_MAX = 0.5, 10.0  # between the end and the start, from the second end in a row on
SIGNALLED = 128  # and the signal's number: the exit status of who was ended by one
END_S_MAX = 30.0  # beyond both grace periods, before a process that does not end is killed

_log = logging.getLogger("outlast.processes")

# Starts one: its number, where it listens, and its end of the line.
Spawn = Callable[[int, socket.socket, socket.socket], Awaitable[asyncio.subprocess.Process]]


class Child:
    """One process, from its start to its end."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, line: Line) -> None:
        self.number, self.process, self.line = number, process, line
        self.is_ready = False
        self.ready_at = 0.0
        self.failure: str | None = None
        self.lacks_store = False
        self._told: dict[int, asyncio.Future[Figures]] = {}
        self._numbers = itertools.count(1)

    async def figures(self) -> Figures | None:
        """What it counts; None when it does not say."""
        number, told = next(self._numbers), asyncio.get_running_loop().create_future()
        self._told[number] = told
        self.line.send({"tell": number})
        try:
            async with asyncio.timeout(FIGURES_S_MAX):
                return await told
        except TimeoutError:
            return None
        finally:
            del self._told[number]

    def tells(self, number: int, figures: Figures) -> None:
        """Its answer."""
        if (told := self._told.get(number)) is not None and not told.done():
            told.set_result(figures)

    def signal(self, number: signal.Signals) -> None:
        """Nothing, if it has ended."""
        if self.process.returncode is None:
            self.process.send_signal(number)


class Supervisor:
    """Keeps so many processes until it is told to stop."""

    def __init__(self, count: int, port: SharedPort, spawn: Spawn, brief: bytes) -> None:
        self._count, self._port, self._spawn, self._brief = count, port, spawn, brief
        self._children: dict[int, Child] = {}
        self._served: set[int] = set()
        self._all_served = asyncio.Event()
        self._stopping = asyncio.Event()
        self._how = signal.SIGTERM
        self._answers: set[asyncio.Task[None]] = set()
        self._is_clean = True

    async def run(
        self, signals: "asyncio.Queue[signal.Signals]", announce: Callable[[], None], grace_s: float
    ) -> int:
        """Serve until a signal; the exit status. Raises ConfigurationError.

        The first signal lets all of them drain. A second one ends them, and so does a drain that
        takes longer than it can.
        """
        numbers = range(1, self._count + 1)
        keepers = {asyncio.create_task(self._keep(number)) for number in numbers}
        announcing = asyncio.create_task(self._announce(announce))
        told = asyncio.create_task(signals.get())
        await asyncio.wait({*keepers, told}, return_when=asyncio.FIRST_COMPLETED)
        announcing.cancel()
        self._stop(signal.SIGTERM)
        again = asyncio.create_task(signals.get()) if told.done() else told
        status = await self._drained(keepers, again, 2 * grace_s + END_S_MAX)
        for keeper in keepers:
            keeper.result()
        return status

    async def _drained(
        self,
        keepers: Collection["asyncio.Task[None]"],
        again: "asyncio.Task[signal.Signals]",
        longest_s: float,
    ) -> int:
        ended = asyncio.create_task(asyncio.wait(keepers))
        await asyncio.wait({ended, again}, timeout=longest_s, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            again.cancel()
            return 0 if self._is_clean else 1
        self._stop(signal.SIGKILL)
        await ended
        again.cancel()
        return SIGNALLED + again.result() if again.done() else 1

    async def _announce(self, announce: Callable[[], None]) -> None:
        await self._all_served.wait()
        announce()

    def _stop(self, how: signal.Signals) -> None:
        self._how = how
        self._stopping.set()
        self._port.close()  # before they leave, or who comes now would wait for nobody
        for child in self._children.values():
            child.signal(how)

    async def _keep(self, number: int) -> None:
        """Have one process of this number for as long as the service lasts."""
        in_a_row = failed = 0
        while not self._stopping.is_set():
            child = await self._start(number)
            await self._follow(child)
            how = _how(child.process.returncode or 0)
            if self._stopping.is_set():
                # It may have been told before it could hear, and is then ended by the signal.
                self._is_clean &= child.process.returncode in {0, -signal.SIGTERM}
                return
            failed = 0 if child.is_ready else failed + 1
            self._judge(child, failed, how)
            served_s = asyncio.get_running_loop().time() - child.ready_at
            in_a_row = 1 if child.is_ready and served_s >= STEADY_S else in_a_row + 1
            pause_s = min(PAUSE_S * 2 ** (in_a_row - 2), PAUSE_S_MAX) if in_a_row > 1 else 0.0
            _log.warning("process %d %s; it is started again in %.1f s", number, how, pause_s)
            if pause_s:
                # Who comes meanwhile goes to the others. For a start at once they wait instead.
                self._port.release(number)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._stopping.wait()

    def _judge(self, child: Child, failed: int, how: str) -> None:
        """Raises ConfigurationError where another try is of no use."""
        has_served = self._all_served.is_set()
        if not failed or (child.lacks_store and has_served):
            return
        if child.failure is not None and (failed >= START_TRIES_MAX or not has_served):
            raise errors.ConfigurationError(child.failure)
        if failed >= START_TRIES_MAX:
            raise errors.ConfigurationError(
                f"process {child.number} {how} before it served, {failed} times; its log says why"
            )

    async def _start(self, number: int) -> Child:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await self._spawn(number, self._port.listener(number), theirs)
        child = self._children[number] = Child(number, process, await Line.over(ours))
        child.line.brief(self._brief)
        return child

    async def _follow(self, child: Child) -> None:
        """Hear it until it has ended."""
        loop = asyncio.get_running_loop()
        late = loop.call_later(START_S_MAX, child.signal, signal.SIGKILL)
        if self._stopping.is_set():
            child.signal(self._how)
        async for message in child.line.messages():
            match message:
                case {"ready": _}:
                    late.cancel()
                    self._serves(child)
                case {"failed": str(why), "away": bool(away)}:
                    child.failure, child.lacks_store = why, away
                case {"ask": int(number)}:
                    answering = asyncio.create_task(self._answer(child, number))
                    self._answers.add(answering)
                    answering.add_done_callback(self._answers.discard)
                case {"told": int(number), "figures": figures}:
                    child.tells(number, figures)
                case {"took": _}:
                    self._hand_on(child, message)
                case _:
                    pass
        child.line.close()
        late.cancel()
        late = loop.call_later(END_S_MAX, child.signal, signal.SIGKILL)
        await child.process.wait()
        late.cancel()

    def _serves(self, child: Child) -> None:
        child.is_ready, child.ready_at = True, asyncio.get_running_loop().time()
        self._served.add(child.number)
        if len(self._served) == self._count:
            self._all_served.set()

    async def _answer(self, asker: Child, number: int) -> None:
        children = self._serving()
        told = await asyncio.gather(*(child.figures() for child in children))
        found: dict[str, Figures] = {
            str(child.number): figures
            for child, figures in zip(children, told, strict=True)
            if figures is not None
        }
        asker.line.send({"answer": number, "figures": found})

    def _hand_on(self, teller: Child, message: Mapping[str, Any]) -> None:
        for child in self._serving():
            if child is not teller:
                child.line.send(message)

    def _serving(self) -> list[Child]:
        children = self._children.values()
        return [each for each in children if each.is_ready and each.process.returncode is None]


def _how(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
