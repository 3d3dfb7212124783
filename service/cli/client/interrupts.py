"""Ctrl-C as something that is asked about: it breaks off what may be broken off, and kills nothing.

Elsewhere an interrupt would be an exception at any line, between an answer and its note among them.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

import anyio

T = TypeVar("T")


class Interrupted(Exception):
    """Ctrl-C came while this was under way."""


class Interrupts:
    """Breaks off one thing at a time."""

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None
        self._is_pending = False

    @contextmanager
    def heard(self) -> Generator[None]:
        """Ctrl-C comes here meanwhile."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.came)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def came(self) -> None:
        """Break off what is under way, or else what comes next."""
        if self._scope is None:
            self._is_pending = True
        else:
            self._scope.cancel()

    async def breaking(self, work: Callable[[], Awaitable[T]]) -> T:
        """What the work returns. Raises Interrupted."""
        if self._is_pending:
            self._is_pending = False
            raise Interrupted
        with anyio.CancelScope() as scope:
            self._scope = scope
            try:
                return await work()
            finally:
                self._scope = None
        raise Interrupted
