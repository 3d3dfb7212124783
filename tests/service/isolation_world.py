"""Callers of every kind, the issuers of their tokens, and a count of the statements they cause.

All tasks are sealed, as it is the default for whatever others can reach.
"""

import base64
import hmac
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.postgres import Database
from outlast.domain.owner import Owner
from outlast.tests.delivery.posting import served
from outlast.tests.support.proxy import Proxy, between
from outlast.tests.support.publishing import Publisher
from outlast.tests.support.sealed import sealer
from outlast.tests.support.serving import Serving, serving

RESOURCE = "https://outlast.example/mcp"
KEY_ID = "key-1"
HOUR_S = 3_600
USUAL = "outlast:call outlast:watch"
EVERY = f"{USUAL} outlast:operate outlast:audit"


@dataclass(frozen=True)
class Issuer:
    """An authorization server: a name, a key, and the set in which the key is published."""

    url: str
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    @property
    def jwk(self) -> dict[str, Any]:
        public = ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {**public, "kid": KEY_ID, "use": "sig", "alg": "ES256"}

    def token(self, subject: str, client: str, scope: str = USUAL, **changes: Any) -> str:
        """An access token; `changes` replace claims."""
        headers = {"kid": KEY_ID, "typ": "at+jwt"}
        claims = self.claims(subject, client, scope, **changes)
        return jwt.encode(claims, self.key, algorithm="ES256", headers=headers)

    def claims(self, subject: str, client: str, scope: str, **changes: Any) -> dict[str, Any]:
        now = int(time.time())
        return {
            "iss": self.url,
            "aud": RESOURCE,
            "sub": subject,
            "client_id": client,
            "scope": scope,
            "iat": now,
            "exp": now + HOUR_S,
            **changes,
        }

    def owner(self, subject: str, client: str) -> Owner:
        return Owner(self.url, subject, client)

    def bad_tokens(self, other: "Issuer") -> Mapping[str, str]:
        """Tokens that look like alice's and are not good; `other` is trusted too."""
        good = self.token("alice", "desk")
        header, payload, signature = good.split(".")
        claims = self.claims("alice", "desk", USUAL)
        long_ago = int(time.time()) - HOUR_S
        public = self.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        stranger = Issuer("https://stranger.example")
        bobs = _part({**claims, "sub": "bob"})
        return {
            "none that we know": "no-token-of-ours",
            "expired": self.token("alice", "desk", exp=long_ago),
            "not yet valid": self.token("alice", "desk", nbf=long_ago + 2 * HOUR_S),
            "without an end": _signed(self.key, {k: v for k, v in claims.items() if k != "exp"}),
            "for another audience": self.token("alice", "desk", aud="https://other.example"),
            "for no audience": _signed(self.key, {k: v for k, v in claims.items() if k != "aud"}),
            "of an issuer that nobody trusts": stranger.token("alice", "desk"),
            "of a stranger in our issuer's name": stranger.token("alice", "desk", iss=self.url),
            "of the other issuer in this one's name": other.token("alice", "desk", iss=self.url),
            "unsigned": f"{header}.{payload}.",
            "without a third part": f"{header}.{payload}",
            "alg none": f"{_part({'alg': 'none', 'typ': 'at+jwt'})}.{payload}.",
            "alg none with a signature": f"{_part({'alg': 'None'})}.{payload}.{signature}",
            "HS256 with the public key": _keyed(claims, public),
            "HS256 with the published JWK": _keyed(claims, json.dumps(self.jwk).encode()),
            "HS256 with no key": _keyed(claims, b""),
            "of another kind": _signed(self.key, claims, "logout+jwt"),
            "with a key of its own": jwt.encode(
                claims, stranger.key, algorithm="ES256", headers={"jwk": stranger.jwk}
            ),
            "changed after it was signed": f"{header}.{bobs}.{signature}",
            "cut short": good[:-2],
        }


def _part(content: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def _signed(key: Any, claims: Mapping[str, Any], kind: str = "at+jwt") -> str:
    headers = {"kid": KEY_ID, "typ": kind}
    return jwt.encode(dict(claims), key, algorithm="ES256", headers=headers)


def _keyed(claims: Mapping[str, Any], secret: bytes) -> str:
    """By hand: the library would not use a public key as a secret."""
    text = f"{_part({'alg': 'HS256', 'kid': KEY_ID, 'typ': 'at+jwt'})}.{_part(claims)}"
    mac = base64.urlsafe_b64encode(hmac.digest(secret, text.encode(), "sha256"))
    return f"{text}.{mac.decode().rstrip('=')}"


@asynccontextmanager
async def two_issuers() -> AsyncGenerator[tuple[Issuer, Issuer]]:
    """Two authorization servers, whose key sets are served from loopback."""
    issuers: dict[str, Issuer] = {}

    async def keys(request: Request) -> Response:
        return JSONResponse({"keys": [issuers[request.path_params["name"]].jwk]})

    app = Starlette(routes=[Route("/{name}/keys", keys)])
    async with served(app) as url:
        origin = url.partition("/hooks")[0]
        issuers |= {name: Issuer(f"{origin}/{name}") for name in ("one", "two")}
        yield issuers["one"], issuers["two"]


ROW = "a row comes back"


class Statements(Proxy):
    """Every statement that goes to PostgreSQL, in the order in which it is executed, and every row
    that comes back."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url, folder)
        self.executed: list[str] = []

    async def _forward_requests(self, reader: Any, writer: Any) -> None:
        await _forward(reader, writer, _Requests(self.executed))

    async def _forward_replies(self, reader: Any, writer: Any) -> None:
        await _forward(reader, writer, _Replies(self.executed))


async def _forward(reader: Any, writer: Any, wire: "_Wire") -> None:
    while chunk := await reader.read(65_536):
        wire.feed(chunk)  # first: who has the answer finds it noted
        writer.write(chunk)
        await writer.drain()


class _Wire:
    """One direction of one connection (PostgreSQL's protocol, version 3), message by message."""

    kind_bytes = 1

    def __init__(self, executed: list[str]) -> None:
        self.executed, self._pending = executed, b""

    def feed(self, chunk: bytes) -> None:
        """Note what these bytes complete."""
        self._pending += chunk
        while len(self._pending) >= self.kind_bytes + 4:
            start = self.kind_bytes
            length = start + int.from_bytes(self._pending[start : start + 4], "big")
            if len(self._pending) < length:
                return
            message, self._pending = self._pending[:length], self._pending[length:]
            self.note(message[:start], message[start + 4 :])

    def note(self, kind: bytes, content: bytes) -> None:
        """One message."""
        raise NotImplementedError


class _Replies(_Wire):
    def note(self, kind: bytes, content: bytes) -> None:
        if kind == b"D":
            self.executed.append(ROW)


class _Requests(_Wire):
    """The first message has no kind; nor have requests for encryption, which are refused."""

    kind_bytes = 0

    def __init__(self, executed: list[str]) -> None:
        super().__init__(executed)
        self._statements: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}

    def note(self, kind: bytes, content: bytes) -> None:
        first, _, rest = content.partition(b"\0")
        second = rest.partition(b"\0")[0]
        match kind:
            case b"":
                self.kind_bytes = int(content.startswith(b"\x00\x03\x00\x00"))
            case b"Q":
                self.executed.append(first.decode())
            case b"P":
                self._statements[first] = second.decode()
            case b"B":
                self._portals[first] = self._statements[second]
            case b"E":
                self.executed.append(self._portals[first])
            case _:
                pass


@dataclass(frozen=True)
class Isolated:
    """A served Outlast that knows two issuers and runs nothing, and the wire to its store."""

    server: Serving
    statements: Statements
    publisher: Publisher
    log: PostgresEventLog
    one: Issuer
    two: Issuer
    config: str
    database_url: str
    notes: dict[str, dict[str, str]] = field(default_factory=dict)


@asynccontextmanager
async def isolated(folder: Path, database_url: str, config: str) -> AsyncGenerator[Isolated]:
    """The server, reached by the tokens of its issuers alone."""
    async with two_issuers() as (one, two), between(database_url, Statements) as wire:
        whole = config + identity_of(one, two)
        store = Database(database_url)
        await store.open()
        log = PostgresEventLog(store, sealer=sealer(store))
        with closing(log):
            async with serving(folder, whole, wire.url, ["--no-work"]) as server:
                yield Isolated(server, wire, Publisher(log), log, one, two, whole, database_url)
        await store.close()


def identity_of(*issuers: Issuer) -> str:
    """The [identity] of a configuration."""
    tables = [
        f'[[identity.issuers]]\nissuer = "{one.url}"\njwks_url = "{one.url}/keys"\n'
        for one in issuers
    ]
    return f'[identity]\nresource = "{RESOURCE}"\n' + "".join(tables)
