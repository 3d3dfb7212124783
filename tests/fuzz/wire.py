"""HTTP/1.1 as bytes on a socket: no client library stands between an input and the server."""

import json
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any

PATIENCE_S = 20.0
STREAM = "text/event-stream"
FRAMES_MAX = 20  # of a stream: its first message comes well before

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Answer:
    """What came back; of a stream, its first message."""

    status: int
    kind: str
    headers: tuple[tuple[str, str], ...]
    content: bytes

    @property
    def is_json(self) -> bool:
        return self.kind.startswith("application/json") or self.kind.startswith(STREAM)

    @property
    def body(self) -> Any:
        return json.loads(self.content)


@dataclass(frozen=True)
class Request:
    """One request as it goes out. `cut` bytes of the body are promised and never sent."""

    method: str
    path: bytes
    headers: Headers
    content: bytes
    cut: int = 0

    @property
    def head(self) -> bytes:
        length = [(b"content-length", str(len(self.content) + self.cut).encode())]
        lines = [name + b": " + value for name, value in [*self.headers, *length]]
        first = self.method.encode() + b" " + self.path + b" HTTP/1.1"
        return b"\r\n".join((first, *lines, b"", b""))


class Line:
    """One connection at a time to one server, opened again when it has ended."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._socket: socket.socket | None = None
        self._is_fresh = True

    def ask(self, request: Request) -> Answer | None:
        """The answer; None when the server hung up without one. Raises TimeoutError."""
        try:
            return self._asked(request)
        except (ConnectionError, HTTPException):
            was_fresh = self._is_fresh
            self.close()
            # A connection that was kept may have been given up before this request came.
            return None if was_fresh else self.ask(request)

    def _asked(self, request: Request) -> Answer | None:
        self._is_fresh = self._socket is None
        line = self._socket or socket.create_connection(self._address, PATIENCE_S)
        self._socket = line
        # It may answer, and hang up, before it has read all.
        with suppress(BrokenPipeError, ConnectionResetError):
            line.sendall(request.head + request.content)
            if request.cut:
                line.shutdown(socket.SHUT_WR)
        reply = HTTPResponse(line, method=request.method)
        try:
            reply.begin()
            answer = _read(reply)
            if request.cut or reply.will_close or answer.kind.startswith(STREAM):
                self.close()
            return answer
        finally:
            reply.close()

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(reply: HTTPResponse) -> Answer:
    kind = reply.headers.get("content-type", "")
    content = _first_message(reply) if kind.startswith(STREAM) else reply.read()
    return Answer(reply.status, kind, tuple(reply.headers.items()), content)


def _first_message(reply: HTTPResponse) -> bytes:
    for _ in range(FRAMES_MAX):
        line = reply.readline()
        if line.startswith(b"data: "):
            return line.removeprefix(b"data: ").strip()
    raise AssertionError("a stream without a message")
