"""A served console, a browser without a screen, and an OAuth issuer that people sign in at."""

import base64
import hashlib
import html
import re
import socket
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from outlast.service.hosting import HttpServer
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.issuing import SigningKey, signed
from outlast.tests.support.serving import Serving, serving

COOKIE = "outlast_console"
ALICE = "the-token-of-alice-which-is-long-enough"
ADMIN = "the-token-of-all-operators-which-is-long-enough"
RESOURCE = "http://127.0.0.1:1/mcp"
OK, SEE_OTHER, MISDIRECTED = 200, 303, 421
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, TOO_LARGE = 401, 403, 404, 413
CLIENT_ID, CLIENT_SECRET = "console-client", "the-secret-of-the-console-at-its-issuer"
_HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)"')


@dataclass
class Browser:
    """Keeps cookies, follows nothing by itself, and says where its forms come from."""

    base: str
    http: httpx2.AsyncClient

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        return await self.http.get(self._at(path), headers=headers)

    async def post(self, path: str, fields: Mapping[str, str], **headers: str) -> httpx2.Response:
        sent = {"origin": self.base, "sec-fetch-site": "same-origin"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        kept = {name: value for name, value in {**sent, **named}.items() if value}
        return await self.http.post(self._at(path), data=dict(fields), headers=kept)

    async def sign_in(self, token: str, then: str = "/console") -> httpx2.Response:
        return await self.post("/console/sign-in", {"token": token, "next": then})

    @property
    def cookie(self) -> str | None:
        return self.http.cookies.get(COOKIE)

    async def csrf(self) -> str:
        """The token in the form on the overview."""
        found = dict(_HIDDEN.findall((await self.get("/console")).text))
        return html.unescape(found["csrf"])

    def _at(self, path: str) -> str:
        return path if path.startswith("http") else f"{self.base}{path}"


@asynccontextmanager
async def browsing(base: str) -> AsyncGenerator[Browser]:
    async with httpx2.AsyncClient(trust_env=False, verify=False, timeout=20.0) as http:
        yield Browser(base, http)


@dataclass
class Issuer:
    """An authorization server: one person, who always agrees, and codes that are good once."""

    url: str
    key: SigningKey
    audience: str
    claims: dict[str, Any] = field(default_factory=dict)  # what its next token says otherwise
    named: str | None = None  # what `iss` of its answers says, if it lies
    refuses: bool = False
    asked: list[dict[str, str]] = field(default_factory=list)  # what it was sent for
    tokens: list[str] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    async def describe(self, _request: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
            }
        )

    async def keys(self, _request: Request) -> Response:
        return JSONResponse({"keys": [self.key.jwk]})

    async def authorize(self, request: Request) -> Response:
        given = dict(request.query_params)
        self.asked.append(given)
        told = {"state": given["state"], "iss": self.named or self.url}
        if self.refuses:
            return _to(given["redirect_uri"], told | {"error": "access_denied"})
        code = f"code-{len(self.asked)}"
        self.codes[code] = given
        return _to(given["redirect_uri"], told | {"code": code})

    async def token(self, request: Request) -> Response:
        given = {
            name: values[0] for name, values in parse_qs((await request.body()).decode()).items()
        }
        begun = self.codes.pop(given["code"], None)
        digest = hashlib.sha256(given["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        is_good = (
            begun is not None
            and begun["code_challenge"] == challenge
            and begun["code_challenge_method"] == "S256"
            and begun["redirect_uri"] == given["redirect_uri"]
            and (given["client_id"], given.get("client_secret")) == (CLIENT_ID, CLIENT_SECRET)
        )
        if not is_good or begun is None:
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        good = {
            "iss": self.url,
            "sub": "anna",
            "client_id": CLIENT_ID,
            "aud": begun.get("resource", ""),
            "iat": now,
            "exp": now + 600,
            "scope": begun["scope"],
        }
        token = signed({**good, **self.claims}, self.key)
        self.tokens.append(token)
        return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": 600})


def _to(place: str, told: Mapping[str, str]) -> Response:
    return RedirectResponse(f"{place}?{urlencode(told)}", 302)


@asynccontextmanager
async def issuing(audience: str) -> AsyncGenerator[Issuer]:
    """The issuer on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        issuer = Issuer(url, SigningKey.made("key-1"), audience)
        routes = [
            Route("/.well-known/oauth-authorization-server", issuer.describe),
            Route("/keys", issuer.keys),
            Route("/authorize", issuer.authorize),
            Route("/token", issuer.token, methods=["POST"]),
        ]
        server = HttpServer(
            uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off")
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            try:
                yield issuer
            finally:
                server.should_exit = True


def here(place: str, base: str) -> str:
    """The address at the server that stands for what the issuer knows the console as."""
    parts = urlsplit(place)
    return f"{base}{parts.path}?{parts.query}"


@dataclass(frozen=True)
class Doors:
    """The server, the issuer that it trusts, and its log."""

    server: Serving
    issuer: Issuer

    @property
    def base(self) -> str:
        return self.server.base_url

    @property
    def log(self) -> str:
        return self.server.log.read_text()


@asynccontextmanager
async def doors_on(folder: Path, database_url: str) -> AsyncGenerator[Doors]:
    """A server that knows alice's token, the operators' and an issuer's."""
    digest = hashlib.sha256(ALICE.encode()).hexdigest()
    (folder / "tokens.toml").write_text(f'[[tokens]]\nsha256 = "{digest}"\nsubject = "alice"\n')
    async with issuing(RESOURCE) as issuer:
        config = _config(issuer.url)
        async with serving(folder, config, database_url, ["--no-work"]) as server:
            yield Doors(server, issuer)


def _config(issuer: str) -> str:
    lines = [f'tokens_file = "tokens.toml"\nadmin_token = "{ADMIN}"\nlog_level = "debug"']
    lines = [desk_config(lines[0])]
    lines += ["[identity]", f'resource = "{RESOURCE}"']
    lines += ["[[identity.issuers]]", f'issuer = "{issuer}"']
    lines += ["[console.oidc]", f'issuer = "{issuer}"', f'client_id = "{CLIENT_ID}"']
    lines += [f'client_secret = "{CLIENT_SECRET}"']
    return "\n".join(lines) + "\n"
