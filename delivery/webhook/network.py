"""The road from a name to a socket: resolve once, judge every answer, dial what was judged.

This is the only place where a webhook's name is resolved, and it is below the HTTP library: URL,
Host header, SNI and certificate check stay on the name, while the socket goes to the very address
that was judged. A name that changes its mind in between changes nothing.

    httpcore2.ConnectError
    ├── RoadClosed      no address that a webhook may go to
    └── TlsFailed       no TLS, or not the name's certificate
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import httpcore2

from .address import AddressRefused, judged, names_loopback

CONNECT_S_MAX = 5.0  # for all of it: the name, the addresses tried, the TLS handshake
ADDRESSES_TRIED_MAX = 4  # all are judged; a name with more loses nothing but patience
RESOLVER_THREADS_MAX = 32

# One reply, off the wire: the body that we would read, and head, chunk sizes and framing with it.
REPLY_WIRE_BYTES_MAX = 48 * 1024

_CLOSED = "names are not looked up any more"

Resolve = Callable[[str], Awaitable[Sequence[str]]]
Lookup = Callable[[str], Sequence[str]]


class RoadClosed(httpcore2.ConnectError):
    """The name leads to no address that a webhook may go to."""


class TlsFailed(httpcore2.ConnectError):
    """The TLS handshake failed."""


def system_lookup(host: str) -> Sequence[str]:
    """All addresses of a name, from the machine's own resolver. Blocks; raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


class SystemResolver:
    """A blocking lookup in threads of its own, one question at a time for one name.

    A name server that never answers holds a thread long after we have stopped waiting. Here it
    holds one for its name, and none of those that the rest of the process works with.
    """

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        self._lookup = lookup
        self._threads = ThreadPoolExecutor(RESOLVER_THREADS_MAX, "webhook-names")
        self._asked: dict[str, asyncio.Future[Sequence[str]]] = {}
        self._is_closed = False

    async def __call__(self, host: str) -> Sequence[str]:
        """The addresses of the name.

        Raises OSError, also for a name that cannot be encoded, and once the resolver is closed.
        """
        answer = self._asked.get(host) or self._ask(host)
        # Not by a shield: a question that the closing drops is cancelled, and we are not.
        await asyncio.wait([answer])
        if answer.cancelled():
            raise OSError(_CLOSED)
        try:
            return answer.result()
        except UnicodeError as error:
            raise OSError("the name cannot be encoded") from error

    def _ask(self, host: str) -> "asyncio.Future[Sequence[str]]":
        if self._is_closed:
            raise OSError(_CLOSED)
        loop = asyncio.get_running_loop()
        answer = self._asked[host] = loop.run_in_executor(self._threads, self._lookup, host)
        answer.add_done_callback(lambda done: self._forget(host, done))
        return answer

    def close(self) -> None:
        """Take no more questions. Does not wait for answers."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _forget(self, host: str, done: "asyncio.Future[Sequence[str]]") -> None:
        self._asked.pop(host, None)
        if not done.cancelled():
            done.exception()  # all who asked may be gone; asyncio would complain


class GuardedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects by name to judged addresses only. `dial` is handed addresses, never a name."""

    def __init__(
        self, resolve: Resolve, dial: httpcore2.AsyncNetworkBackend, *, allow_loopback: bool
    ) -> None:
        self._resolve, self._dial = resolve, dial
        self._allow_loopback = allow_loopback

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """A stream to the first judged address that answers. Raises the library's errors."""
        deadline = anyio.current_time() + (CONNECT_S_MAX if timeout is None else timeout)
        addresses = (await self._addresses(host, deadline))[:ADDRESSES_TRIED_MAX]
        failed: httpcore2.ConnectError | httpcore2.ConnectTimeout | None = None
        for tried, address in enumerate(addresses):
            left = max(0.0, deadline - anyio.current_time())
            share = left / (len(addresses) - tried)
            try:
                stream = await self._dial.connect_tcp(
                    address, port, share, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
            else:
                return MeteredStream(stream, deadline)
        raise failed or RoadClosed

    async def _addresses(self, host: str, deadline: float) -> Sequence[str]:
        try:
            with anyio.fail_after(max(0.0, deadline - anyio.current_time())):
                answers = await self._resolve(host)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout from error
        except OSError as error:
            raise httpcore2.ConnectError from error
        try:
            return judged(answers, loopback=self._allow_loopback and names_loopback(host))
        except AddressRefused as refused:
            raise RoadClosed(refused.reason) from refused


class MeteredStream(httpcore2.AsyncNetworkStream):
    """A stream that gives no more of one reply than fits, whatever the other side sends.

    What we write is a request, and renews the allowance.
    """

    def __init__(self, stream: httpcore2.AsyncNetworkStream, connect_by: float) -> None:
        self._stream = stream
        self._connect_by = connect_by
        self._left = REPLY_WIRE_BYTES_MAX

    async def read(
        self,
        max_bytes: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's signature
    ) -> bytes:
        """The next bytes of the reply. Raises ReadError when it has had its share."""
        if self._left <= 0:
            raise httpcore2.ReadError("the reply is too long")
        data = await self._stream.read(min(max_bytes, self._left), timeout)
        self._left -= len(data)
        return data

    async def write(
        self,
        buffer: bytes,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's signature
    ) -> None:
        """Send a part of a request."""
        self._left = REPLY_WIRE_BYTES_MAX
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the stream below."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109 - the library would start anew
    ) -> httpcore2.AsyncNetworkStream:
        """Shake hands in what is left of the time to connect. Raises TlsFailed."""
        left = max(0.0, self._connect_by - anyio.current_time())
        try:
            stream = await self._stream.start_tls(ssl_context, server_hostname, left)
        except (httpcore2.ConnectError, ssl.SSLError) as error:
            raise TlsFailed from error
        return MeteredStream(stream, self._connect_by)

    def get_extra_info(self, info: str) -> Any:
        """What the stream below knows of itself."""
        return self._stream.get_extra_info(info)
