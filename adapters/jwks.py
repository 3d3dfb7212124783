"""The public keys of an issuer: fetched at need, kept for a while, and never asked for often.

Who sends tokens decides when we look, so each look is bounded: in time, in bytes, in keys, one at a
time, and none sooner than `PAUSE_S` after the last. Keys that cannot be renewed stay good for
`STALE_S_MAX`: an issuer that is down keeps nobody out who was let in before.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2
import jwt
import orjson

from ..domain import errors

FRESH_S = 300.0  # a key that an issuer takes back is trusted this long
STALE_S_MAX = 3_600.0  # and this long while the issuer cannot be reached
PAUSE_S = 10.0  # between two looks, whatever tokens come
FETCH_S_MAX = 5.0
BODY_BYTES_MAX = 256 * 1024
KEYS_MAX = 100
KEY_ID_LENGTH_MAX = 512
RSA_BITS_MIN = 2048
RSA_BITS_MAX = 8192  # to check a signature of a larger one takes too long
OK = 200

# What each algorithm is used with: the kind of key, and for curves which one.
FITTING: Mapping[str, tuple[str, str | None]] = {
    **{f"{kind}{bits}": ("RSA", None) for kind in ("RS", "PS") for bits in (256, 384, 512)},
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}

Fetch = Callable[[], Awaitable[Sequence["Key"]]]

_log = logging.getLogger("outlast.identity")


class Unfetched(Exception):
    """An issuer's keys could not be had; says why."""


@dataclass(frozen=True)
class Key:
    """One public key of a set, and the one algorithm that it may be used with here."""

    id: str | None
    algorithm: str
    public: jwt.PyJWK


class KeyRing:
    """The keys of one issuer. `fetch` gets them, or raises `Unfetched`."""

    def __init__(
        self, name: str, fetch: Fetch, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._fetch, self._clock = name, fetch, clock
        self._keys: Sequence[Key] = ()
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._is_failing = False
        self._looking: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None, algorithm: str) -> Key | None:
        """The key of this id for this algorithm; a token without an id needs there to be just one.

        None when there is none even after a new look, or no new look is due yet. Raises
        IdentityUnavailable while no keys can be had at all.
        """
        age = self._age()
        key = self._kept(key_id, algorithm)
        if key is None or age >= 2 * FRESH_S:
            # With a good key in hand, an issuer that did not answer last time is not waited for.
            can_do_without = key is not None and age <= STALE_S_MAX and self._is_failing
            await self._look(wait=not can_do_without)
            key = self._kept(key_id, algorithm)
        elif age >= FRESH_S:
            await self._look(wait=False)
        if self._age() > STALE_S_MAX:
            raise errors.IdentityUnavailable
        return key

    async def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def _age(self) -> float:
        return float("inf") if self._fetched_at is None else self._clock() - self._fetched_at

    def _kept(self, key_id: str | None, algorithm: str) -> Key | None:
        fitting = [
            key
            for key in self._keys
            if key.algorithm == algorithm and (key_id is None or key.id == key_id)
        ]
        return fitting[0] if len(fitting) == 1 else None

    async def _look(self, *, wait: bool) -> None:
        """Begin a look unless one runs or it is too early; all who wait share one."""
        if self._looking is None:
            if self._tried_at is not None and self._clock() - self._tried_at < PAUSE_S:
                return
            self._tried_at = self._clock()
            self._looking = asyncio.create_task(self._refresh())
        if wait:
            # Shielded: who asked may go, the others wait on.
            await asyncio.shield(self._looking)

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(FETCH_S_MAX):
                self._keys = await self._fetch()
            self._fetched_at, self._is_failing = self._clock(), False
        except (Unfetched, TimeoutError) as error:
            self._is_failing = True
            _log.warning("the keys of %s cannot be fetched: %s", self._name, error or "too slow")
        finally:
            self._looking = None


class KeySource:
    """Fetches the keys of one issuer over HTTP, from a URL that is given or discovered."""

    def __init__(self, issuer: str, jwks_url: str | None, ca_file: Path | None = None) -> None:
        self._issuer, self._given, self._ca_file = issuer, jwks_url, ca_file
        self._discovered: str | None = None
        self._trusted: ssl.SSLContext | None = None

    async def __call__(self) -> Sequence[Key]:
        """The usable keys. Raises Unfetched."""
        try:
            async with self._client() as http:
                url = self._given or self._discovered or await self._discover(http)
                # Kept only once it has led to keys: a wrong answer is looked up again.
                self._discovered = None
                keys = usable(await _json_at(http, url))
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise Unfetched(f"{type(error).__name__}: {error}") from error
        self._discovered = url
        return keys

    def _client(self) -> httpx2.AsyncClient:
        if self._trusted is None:
            self._trusted = trusted_with(self._ca_file)
        return client_of(self._trusted)

    async def _discover(self, http: httpx2.AsyncClient) -> str:
        """`jwks_uri` of the issuer's metadata, OAuth's or OpenID's. Raises Unfetched."""
        failed: list[str] = []
        for url in discovery_urls(self._issuer):
            try:
                return _jwks_url_in(await _json_at(http, url), self._issuer)
            except Unfetched as error:
                failed.append(str(error))
        raise Unfetched("; ".join(failed))


def trusted_with(ca_file: Path | None) -> ssl.SSLContext:
    """Whose certificates are good for an issuer."""
    trusted = ssl.create_default_context()
    if ca_file is not None:
        trusted.load_verify_locations(ca_file)
    return trusted


def client_of(trusted: ssl.SSLContext) -> httpx2.AsyncClient:
    """What asks issuers. A redirect is an answer like any other."""
    return httpx2.AsyncClient(
        verify=trusted,
        trust_env=False,
        follow_redirects=False,
        timeout=FETCH_S_MAX,
        # No compression: what is counted is what comes.
        headers={"Accept": "application/json", "Accept-Encoding": "identity"},
    )


async def body_of(reply: httpx2.Response, url: str) -> bytes:
    """What an issuer answers with, within the bounds. Raises Unfetched."""
    if reply.headers.get("content-encoding", "identity") != "identity":
        raise Unfetched(f"{url} answered compressed although asked not to")
    body = bytearray()
    async for chunk in reply.aiter_raw():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise Unfetched(f"{url} answered with more than {BODY_BYTES_MAX} bytes")
    return bytes(body)


def discovery_urls(issuer: str) -> list[str]:
    """Where an issuer's metadata may be (RFC 8414, section 3; OpenID Connect Discovery)."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    urls = [
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}/.well-known/openid-configuration{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    ]
    return list(dict.fromkeys(urls))


def is_safe_url(url: str) -> bool:
    """Whether keys may come from there: nobody can change them on the way."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or parts.username is not None or parts.fragment:
        return False
    return parts.scheme == "https" or (
        parts.scheme == "http" and host in ("localhost", "127.0.0.1", "::1")
    )


def _jwks_url_in(metadata: Any, issuer: str) -> str:
    if not isinstance(metadata, dict):
        raise Unfetched("the metadata is no JSON object")
    members = cast(dict[str, Any], metadata)
    if members.get("issuer") != issuer:
        raise Unfetched(f"the metadata is that of another issuer than {issuer}")
    url = members.get("jwks_uri")
    if not isinstance(url, str) or not is_safe_url(url):
        raise Unfetched("the metadata has no jwks_uri with https")
    return url


async def _json_at(http: httpx2.AsyncClient, url: str) -> Any:
    """What stands there, within the bounds. Raises Unfetched and what the library raises."""
    async with http.stream("GET", url) as reply:
        if reply.status_code != OK:
            raise Unfetched(f"{url} answered with HTTP status {reply.status_code}")
        body = await body_of(reply, url)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Unfetched(f"{url} answered with something that is no JSON") from None


def usable(key_set: Any) -> Sequence[Key]:
    """The keys of a JWK set that signatures can be checked with. Raises Unfetched for no set.

    A key that cannot be used here is passed over: an issuer may have others, for other uses.
    """
    found = cast(dict[str, Any], key_set).get("keys") if isinstance(key_set, dict) else None
    if not isinstance(found, list):
        raise Unfetched("what came is no JWK set")
    listed = cast(list[Any], found)
    if len(listed) > KEYS_MAX:
        raise Unfetched(f"the JWK set has more than {KEYS_MAX} keys")
    members = [cast(dict[str, Any], one) for one in listed if isinstance(one, dict)]
    return [key for one in members if _is_for_signatures(one) for key in _keys_of(one)]


def _is_for_signatures(jwk: Mapping[str, Any]) -> bool:
    key_id, operations = jwk.get("kid"), jwk.get("key_ops", ["verify"])
    return (
        "d" not in jwk  # whose private half is published, anybody signs with
        and jwk.get("use", "sig") == "sig"
        and isinstance(operations, list)
        and "verify" in operations
        and (key_id is None or (isinstance(key_id, str) and len(key_id) <= KEY_ID_LENGTH_MAX))
    )


def _keys_of(jwk: Mapping[str, Any]) -> list[Key]:
    """The key once for each algorithm that it fits: what it is, and what it says it is for."""
    fitting = [
        algorithm
        for algorithm, (kind, curve) in FITTING.items()
        if jwk.get("kty") == kind
        and jwk.get("crv") == curve
        and jwk.get("alg", algorithm) == algorithm
    ]
    keys: list[Key] = []
    for algorithm in fitting:
        try:
            public = jwt.PyJWK(dict(jwk), algorithm)
        except Exception:  # noqa: BLE001 - whatever a library makes of members of any kind
            return []
        if jwk["kty"] != "RSA" or RSA_BITS_MIN <= public.key.key_size <= RSA_BITS_MAX:
            keys.append(Key(jwk.get("kid"), algorithm, public))
    return keys
