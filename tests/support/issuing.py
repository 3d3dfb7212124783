"""A real OAuth issuer on loopback: it serves its keys over HTTP, rotates them, fails on request."""

import base64
import hashlib
import hmac
import json
import socket
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import jwt
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from outlast.service.hosting import HttpServer

AUDIENCE = "https://outlast.example/mcp"
BOUND_S = 60.0
USUAL = "outlast:call outlast:watch"

_FAMILIES = {"RS": RSAAlgorithm, "PS": RSAAlgorithm, "ES": ECAlgorithm, "Ed": OKPAlgorithm}
_CURVES = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}


@dataclass(frozen=True)
class SigningKey:
    """One key pair, and the id and algorithm that it is published under."""

    id: str | None
    algorithm: str
    private: Any

    @classmethod
    def made(cls, key_id: str | None, algorithm: str = "ES256", bits: int = 2048) -> "SigningKey":
        if algorithm in _CURVES:
            return cls(key_id, algorithm, ec.generate_private_key(_CURVES[algorithm]()))
        if algorithm == "EdDSA":
            return cls(key_id, algorithm, ed25519.Ed25519PrivateKey.generate())
        return cls(key_id, algorithm, rsa.generate_private_key(65537, bits))

    @property
    def jwk(self) -> dict[str, Any]:
        family: Any = _FAMILIES[self.algorithm[:2]]
        told = family.to_jwk(self.private.public_key(), as_dict=True)
        told.pop("key_ops", None)
        named = {} if self.id is None else {"kid": self.id}
        return {**told, **named, "use": "sig", "alg": self.algorithm}

    @property
    def private_jwk(self) -> dict[str, Any]:
        """What no issuer should publish."""
        family: Any = _FAMILIES[self.algorithm[:2]]
        told = family.to_jwk(self.private, as_dict=True)
        return {**told, "key_ops": ["sign", "verify"], "kid": self.id, "alg": self.algorithm}

    @property
    def pem(self) -> bytes:
        public = self.private.public_key()
        return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@dataclass
class Issuer:
    """What the issuer serves now, and what it was asked."""

    url: str
    keys: list[SigningKey]
    behaves: str = "well"  # or: down, slow, huge, redirects, garbled, compressed, many
    named: str | None = None  # the issuer that the metadata names, if it lies
    key_url: str | None = None
    further: list[Any] = field(default_factory=list)  # JWKs beside the keys
    asked: list[str] = field(default_factory=list)
    resumed: anyio.Event = field(default_factory=anyio.Event)

    @property
    def jwks_url(self) -> str:
        return f"{self.url}/keys"

    @property
    def looks(self) -> int:
        """How often the keys were asked for."""
        return self.asked.count("/keys")

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Good claims; None leaves one out."""
        now = int(time.time())
        good = {
            "iss": self.url,
            "sub": "anna",
            "client_id": "desk",
            "aud": AUDIENCE,
            "iat": now,
            "exp": now + 600,
            "scope": USUAL,
        }
        return {name: value for name, value in {**good, **changed}.items() if value is not None}

    def token(self, key: SigningKey | None = None, kind: Any = "at+jwt", **changed: Any) -> str:
        """An access token, whose header says that it is of this kind."""
        return signed(self.claims(**changed), key or self.keys[0], kind)

    async def answer(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        if self.behaves == "slow":
            with anyio.move_on_after(BOUND_S):
                await self.resumed.wait()
        match self.behaves:
            case "down":
                return Response(status_code=503)
            case "redirects" if request.url.path != "/elsewhere":
                return RedirectResponse("/elsewhere")
            case "huge":
                return Response(b" " * 300_000 + json.dumps(self._key_set()).encode())
            case "garbled":
                return Response(b"<html>")
            case "compressed":
                return Response(b"", headers={"Content-Encoding": "gzip"})
            case _:
                return JSONResponse(self._key_set())

    async def describe(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        if self.behaves == "down":
            return Response(status_code=503)
        told = {"issuer": self.named or self.url, "jwks_uri": self.key_url or self.jwks_url}
        return JSONResponse(told)

    def _key_set(self) -> dict[str, Any]:
        count = 101 if self.behaves == "many" else 1
        return {"keys": [key.jwk for key in self.keys] * count + self.further}


def signed(claims: Mapping[str, Any], key: SigningKey, kind: Any = "at+jwt") -> str:
    """A JWT over these claims."""
    headers: dict[str, Any] = {"typ": kind}
    if key.id is not None:
        headers["kid"] = key.id
    return jwt.encode(dict(claims), key.private, key.algorithm, headers)


def forged(claims: Any, header: Any, secret: bytes | None = None) -> str:
    """A token that no library would make: unsigned, or with a MAC under this secret."""
    parts = [_segment(json.dumps(part).encode()) for part in (header, claims)]
    text = ".".join(parts)
    mac = b"" if secret is None else hmac.digest(secret, text.encode(), hashlib.sha256)
    return f"{text}.{_segment(mac)}"


def _segment(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@asynccontextmanager
async def issuing(*keys: SigningKey, metadata: str | None = None) -> AsyncGenerator[Issuer]:
    """An issuer that serves these keys, and its metadata at this path."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        issuer = Issuer(url, list(keys) or [SigningKey.made("key-1")])
        routes = [Route(path, issuer.answer) for path in ("/keys", "/elsewhere")]
        if metadata is not None:
            routes.append(Route(metadata, issuer.describe))
        server = HttpServer(
            uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off")
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            try:
                yield issuer
            finally:
                issuer.resumed.set()
                server.should_exit = True
