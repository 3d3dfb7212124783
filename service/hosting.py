"""What everything that serves needs: a socket, a server, and an end on signals."""

import asyncio
import gc
import signal
import socket
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvicorn

from ..domain import errors
from .waits import turns

T = TypeVar("T")

NOT_STARTED = "it could not start serving; the log says why"

YOUNG = 10_000  # new objects before a look at them: many more than a request leaves


def spare_the_collector() -> None:
    """Once all is imported and wired: from now on the garbage collector looks at what is new.

    All that a process begins with is there until it ends. To go through it again and again stops
    everything for 80 ms at a time: with it, one creation in a hundred took 115 ms instead of 30.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])


class HttpServer(uvicorn.Server):
    """Signals are ours: uvicorn would raise them again after a clean shutdown."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Nothing is captured."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Raises ConfigurationError where uvicorn would end the process."""
        try:
            await super().startup(sockets)
        except SystemExit:
            raise errors.ConfigurationError(NOT_STARTED) from None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more; then whatever was accepted ends in order, the newest included.

        uvicorn alone asks those that are made to end, and waits for all.
        """
        await stop_listening(*self.servers)
        await turns()  # uvloop accepts until it is closed
        await super().shutdown(sockets)


async def stop_listening(*listeners: asyncio.Server) -> None:
    """Accept no more, let what was accepted become a connection, then close.

    asyncio loses what it accepts in the turn of `close`, and leaves the socket to the collector.
    """
    loop = asyncio.get_running_loop()
    for listener in listeners:
        for listening in listener.sockets:
            loop.remove_reader(listening.fileno())  # uvloop has none there, and loses nothing
    try:
        await turns()
    finally:
        for listener in listeners:
            listener.close()


def listener_on(host: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens. Raises ConfigurationError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise errors.ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror}"
        ) from error


class SharedPort:
    """One address that several processes listen on, each with a socket of its own.

    With one socket for all, whoever wakes first takes all that waits: of 64 connections to four
    processes, two had 63 and two had one; with one each, by which the kernel spreads what comes, 14
    to 18 (uvloop, Linux 6.18). The sockets stay open here, so that who comes while a process is
    started again waits for it and is not refused.
    """

    def __init__(self, host: str, port: int, backlog: int) -> None:
        first = listener_on(host, port, backlog)
        # Set after it listens: at that moment nobody else did, not even a service like this one.
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.address = address_of(first)
        self._place, self._family = first.getsockname()[:2], first.family
        self._backlog = backlog
        self._listeners = {1: first}

    def listener(self, number: int) -> socket.socket:
        """The socket of this process, which stays ours. Raises ConfigurationError."""
        if number not in self._listeners:
            try:
                self._listeners[number] = socket.create_server(
                    self._place, family=self._family, backlog=self._backlog, reuse_port=True
                )
            except OSError as error:
                raise errors.ConfigurationError(
                    f"cannot listen on {self.address}: {error.strerror}"
                ) from error
        return self._listeners[number]

    def release(self, number: int) -> None:
        """Let what comes go to the others until this one's socket is asked for again."""
        if number in self._listeners:
            self._listeners.pop(number).close()

    def close(self) -> None:
        """Let go of the address, as far as it is held here."""
        for number in list(self._listeners):
            self.release(number)


def url_of(host: str, port: int) -> str:
    """Where that is reached, without a path."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def address_of(listener: socket.socket) -> str:
    """Where what listens there is reached from this machine, without a path."""
    host, port = listener.getsockname()[:2]
    return url_of(host, port)


def heard_signals() -> "asyncio.Queue[signal.Signals]":
    """Each SIGTERM and each SIGINT."""
    heard: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, heard.put_nowait, number)
    return heard


def stop_on_signals() -> asyncio.Event:
    """Set by SIGTERM and by SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on uvloop: the same loop for less of the processor."""
    import uvloop  # here, for the client's commands do without it where it cannot be had

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
