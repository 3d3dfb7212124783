"""What everything that serves needs: a socket, a server, and an end on signals."""

import asyncio
import signal
import socket
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvicorn

from ..domain import errors

T = TypeVar("T")


class HttpServer(uvicorn.Server):
    """Signals are ours: uvicorn would raise them again after a clean shutdown."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Nothing is captured."""
        yield


def listener_on(host: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens. Raises ConfigurationError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise errors.ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror}"
        ) from error


def url_of(host: str, port: int) -> str:
    """Where that is reached, without a path."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def address_of(listener: socket.socket) -> str:
    """Where what listens there is reached from this machine, without a path."""
    host, port = listener.getsockname()[:2]
    return url_of(host, port)


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
