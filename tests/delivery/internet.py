"""A small internet on loopback: public addresses that lead here, endpoints, a DNS server, a CA.

What a test may do to a webhook client, it does over real sockets. Only the last step is ours: a
public address is led to a port of this machine. Loopback is dialled as it is, so that a client
that is tricked into it really arrives; there is no road to anywhere else.
"""

import ipaddress
import ssl
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.abc
import httpcore2
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSListener
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HEAD_BYTES_MAX = 64 * 1024
TYPE_A, TYPE_AAAA = 1, 28

# How a connection ends, seen from a server that wanted to go on.
GONE = (
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.IncompleteRead,
    ssl.SSLError,
)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class CountingStream(httpcore2.AsyncNetworkStream):
    """Counts in `internet.bytes_read` what a client takes off the wire."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream, internet: "Internet") -> None:
        self._stream, self._internet = stream, internet

    async def read(
        self,
        max_bytes: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's signature
    ) -> bytes:
        data = await self._stream.read(max_bytes, timeout)
        self._internet.bytes_read += len(data)
        return data

    async def write(
        self,
        buffer: bytes,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's signature
    ) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's signature
    ) -> httpcore2.AsyncNetworkStream:
        stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        return CountingStream(stream, self._internet)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class Internet(httpcore2.AsyncNetworkBackend):
    """Dials for a client. `routes` leads a public address to a port here."""

    def __init__(self, routes: dict[str, int] | None = None) -> None:
        self.routes = routes or {}
        self.dialled: list[str] = []
        self.bytes_read = 0
        self._loopback = cast(httpcore2.AsyncNetworkBackend, httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        self.dialled.append(host)
        if host in self.routes:
            host, port = "127.0.0.1", self.routes[host]
        if not ipaddress.ip_address(host).is_loopback:
            raise httpcore2.ConnectError("no road")
        return CountingStream(await self._loopback.connect_tcp(host, port, timeout), self)


def names(**answers: Sequence[str]) -> Callable[[str], Awaitable[Sequence[str]]]:
    """A resolver that knows `a` as `a.example`, and nobody else."""

    async def resolve(host: str) -> Sequence[str]:
        try:
            return answers[host.removesuffix(".example")]
        except KeyError:
            raise OSError("no such name") from None

    return resolve


@dataclass
class Exchange:
    """One request as an endpoint got it, and the connection to answer on."""

    head: bytes
    body: bytes
    stream: anyio.abc.ByteStream

    @property
    def target(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    def header(self, name: str) -> str | None:
        for line in self.head.decode().split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name.lower():
                return value.strip()
        return None


Answer = Callable[[Exchange], Awaitable[None]]


def saying(reply: bytes) -> Answer:
    """An endpoint that always says this."""

    async def answer(exchange: Exchange) -> None:
        await exchange.stream.send(reply)

    return answer


def reply(status: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@dataclass
class Endpoint:
    """A server that was started: what it saw, and the most connections it had at once."""

    port: int = 0
    seen: list[Exchange] = field(default_factory=list)
    connections: int = 0
    open_now: int = 0
    open_most: int = 0


@asynccontextmanager
async def endpoint(
    answer: Answer, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncGenerator[Endpoint]:
    """An HTTP server on a port of its own. `answer` returning keeps the connection open."""
    served = Endpoint()

    async def serve(stream: anyio.abc.ByteStream) -> None:
        served.connections += 1
        served.open_now += 1
        served.open_most = max(served.open_most, served.open_now)
        try:
            async with stream:
                await _serve(stream, answer, served)
        except GONE:
            pass
        finally:
            served.open_now -= 1

    listener = await anyio.create_tcp_listener(local_host=host)
    served.port = listener.extra(anyio.abc.SocketAttribute.local_port)
    whole = TLSListener(listener, tls, standard_compatible=False) if tls else listener
    async with whole, anyio.create_task_group() as tasks:
        tasks.start_soon(whole.serve, serve)
        yield served
        tasks.cancel_scope.cancel()


async def _serve(stream: anyio.abc.ByteStream, answer: Answer, served: Endpoint) -> None:
    reader = BufferedByteReceiveStream(stream)
    while True:
        head = await reader.receive_until(b"\r\n\r\n", HEAD_BYTES_MAX)
        exchange = Exchange(head, b"", stream)
        exchange.body = await reader.receive_exactly(int(exchange.header("content-length") or 0))
        served.seen.append(exchange)
        await answer(exchange)


@dataclass
class NameServer:
    """A DNS server over UDP. `script` holds the A answers of each question in turn; the last stays.

    Everything has a time to live of 0. Questions for IPv6 are answered with nothing.
    """

    script: list[list[str]]
    port: int = 0
    asked: int = 0

    async def serve(self, udp: anyio.abc.UDPSocket) -> None:
        async for question, (host, port) in udp:
            await udp.sendto(self._answer(question), host, port)

    def _answer(self, question: bytes) -> bytes:
        end = question.index(b"\0", 12) + 5  # after the name, its type and class
        kind = struct.unpack("!H", question[end - 4 : end - 2])[0]
        found: list[str] = []
        if kind == TYPE_A:
            found = self.script[min(self.asked, len(self.script) - 1)]
            self.asked += 1
        head = question[:2] + struct.pack("!HHHHH", 0x8180, 1, len(found), 0, 0)
        records = [
            struct.pack("!HHHIH4B", 0xC00C, TYPE_A, 1, 0, 4, *map(int, address.split(".")))
            for address in found
        ]
        return head + question[12:end] + b"".join(records)

    async def resolve(self, host: str) -> Sequence[str]:
        """Ask this server, over the wire, as a stub resolver does."""
        found: list[str] = []
        async with await anyio.create_connected_udp_socket("127.0.0.1", self.port) as udp:
            for kind in (TYPE_A, TYPE_AAAA):
                labels = b"".join(bytes([len(part)]) + part.encode() for part in host.split("."))
                await udp.send(
                    struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0)
                    + labels
                    + struct.pack("!BHH", 0, kind, 1)
                )
                reply = await udp.receive()
                count = struct.unpack("!H", reply[6:8])[0]
                tail = reply[len(reply) - 16 * count :]
                found += [
                    ".".join(map(str, tail[at + 12 : at + 16])) for at in range(0, 16 * count, 16)
                ]
        return found


@asynccontextmanager
async def name_server(*script: list[str]) -> AsyncGenerator[NameServer]:
    server = NameServer(list(script))
    async with (
        await anyio.create_udp_socket(local_host="127.0.0.1") as udp,
        anyio.create_task_group() as tasks,
    ):
        server.port = udp.extra(anyio.abc.SocketAttribute.local_port)
        tasks.start_soon(server.serve, udp)
        yield server
        tasks.cancel_scope.cancel()


class Authority:
    """A certificate authority that lives for one test session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "A test's own CA")])
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._certificate(self._name, self._key, constraint)
        self.bundle = folder / "ca.pem"
        self.bundle.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def context(self, *hosts: str) -> ssl.SSLContext:
        """The TLS side of a server that owns exactly these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0])])
        owned = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
        path = self._folder / f"{hosts[0]}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + self._certificate(name, key, owned).public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _certificate(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(extension, critical=False)
            .sign(self._key, hashes.SHA256())
        )
