"""People who come by an OAuth issuer: where to send them, and what their code is worth.

The authorization code flow of a confidential or a public client, always with PKCE. What the token
that comes of it is good for is judged elsewhere, as that of every client.
"""

import logging
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

import httpx2
import orjson

from ..domain import errors
from .jwks import OK, Unfetched, body_of, client_of, discovery_urls, is_safe_url, trusted_with

TOKEN_CHARS_MAX = 16 * 1024
TURNED_DOWN = (400, 401, 403)

_log = logging.getLogger("outlast.identity")


@dataclass(frozen=True)
class Client:
    """What the issuer knows this service as. Without a secret it is a public client."""

    issuer: str
    id: str
    redirect_uri: str
    scopes: Sequence[str]
    resource: str | None = None
    secret: str | None = None
    ca_file: Path | None = None


class CodeFlow:
    """One issuer. Its metadata is fetched when first needed, and again after a failure."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._found: Mapping[str, str] | None = None
        self._trusted: ssl.SSLContext | None = None

    @property
    def issuer(self) -> str:
        """Its name, as its metadata and its answers have it."""
        return self._client.issuer

    async def address(self, state: str, challenge: str) -> str:
        """Where to send somebody. Raises IdentityUnavailable."""
        place = (await self._metadata())["authorization_endpoint"]
        asked = {
            "response_type": "code",
            "client_id": self._client.id,
            "redirect_uri": self._client.redirect_uri,
            "scope": " ".join(self._client.scopes),
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            **self._resource,
        }
        return f"{place}{'&' if urlsplit(place).query else '?'}{urlencode(asked)}"

    async def token(self, code: str, verifier: str) -> str:
        """The access token for a code. Raises Unauthenticated, IdentityUnavailable."""
        given = self._client
        sent = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": given.redirect_uri,
            "client_id": given.id,
            "code_verifier": verifier,
            **self._resource,
            **({} if given.secret is None else {"client_secret": given.secret}),
        }
        place = (await self._metadata())["token_endpoint"]
        status, told = await self._asked("POST", place, sent)
        if status in TURNED_DOWN:
            _log.info("%s takes no such code: HTTP status %d", given.issuer, status)
            raise errors.Unauthenticated("The issuer did not accept the code it had sent.")
        token = told.get("access_token")
        kind = str(told.get("token_type", "")).lower()
        is_usable = isinstance(token, str) and len(token) <= TOKEN_CHARS_MAX and kind == "bearer"
        if status != OK or not is_usable:
            raise self._failed(f"{place} answered with HTTP status {status} and no bearer token")
        return cast(str, token)

    @property
    def _resource(self) -> Mapping[str, str]:
        """What the token is to be for (RFC 8707)."""
        return {} if self._client.resource is None else {"resource": self._client.resource}

    async def _metadata(self) -> Mapping[str, str]:
        if self._found is None:
            self._found = await self._discovered()
        return self._found

    async def _discovered(self) -> Mapping[str, str]:
        wanted = ("authorization_endpoint", "token_endpoint")
        for url in discovery_urls(self._client.issuer):
            status, told = await self._asked("GET", url)
            if status != OK or told.get("issuer") != self._client.issuer:
                continue
            found = {name: told.get(name) for name in wanted}
            if all(isinstance(one, str) and is_safe_url(one) for one in found.values()):
                return cast(Mapping[str, str], found)
        raise self._failed("its metadata names no endpoints with https to sign in at")

    async def _asked(
        self, method: str, url: str, form: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, Any]]:
        """The status and the JSON object that came; nothing of a redirect is followed."""
        try:
            async with self._http() as http, http.stream(method, url, data=form) as reply:
                body = await body_of(reply, url)
        except Unfetched as error:
            raise self._failed(str(error)) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise self._failed(f"{url}: {type(error).__name__}") from None
        try:
            told = orjson.loads(body)
        except orjson.JSONDecodeError:
            told = None
        return reply.status_code, cast(dict[str, Any], told) if isinstance(told, dict) else {}

    def _http(self) -> httpx2.AsyncClient:
        if self._trusted is None:
            self._trusted = trusted_with(self._client.ca_file)
        return client_of(self._trusted)

    def _failed(self, why: str) -> errors.IdentityUnavailable:
        """What to raise; the reason, which names no code and no token, is logged."""
        self._found = None
        _log.warning("nobody can sign in by %s: %s", self._client.issuer, why)
        return errors.IdentityUnavailable()
