"""Bearer tokens of OAuth issuers: JWTs that name this service as their audience.

The issuer is matched first, exactly, and decides whose keys and which algorithms count. Every
refusal of a token that is not proven to be ours says the same; the reason is in the debug log.
"""

import hashlib
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import jwt
import orjson

from ..domain import errors
from ..domain.owner import Caller, Owner, Scope
from .identity import bearer_token
from .jwks import KeyRing

TOKEN_LENGTH_MAX = 16 * 1024
NAME_LENGTH_MAX = 512  # of a subject and of a client: both go into the key of every task
VERIFIED_S = 30.0  # a token that was good is not checked again for so long, but for its end
VERIFIED_MAX = 10_000  # of those the latest are remembered, by their digests
LEEWAY_S = 30  # how far an issuer's clock and ours may be apart
FAR_OFF = 4_102_444_800  # the year 2100: later ones are no dates everywhere
CLIENT_CLAIMS = ("client_id", "azp")

_SHAPE = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_ACCESS_TYPES = ("at+jwt", "application/at+jwt")
_PLAIN_TYPES = (None, "jwt", "application/jwt")  # many issuers say no more than this
_ID_CLAIMS = ("nonce", "at_hash", "c_hash")  # what only ID tokens carry
_OTHER_TYPES = ("id", "refresh", "logout", "offline")

_log = logging.getLogger("outlast.identity")


@dataclass(frozen=True)
class Issuer:
    """One issuer, as the settings have it. The first of `client_claims` that is there counts."""

    issuer: str
    audience: Sequence[str]
    algorithms: Sequence[str]
    keys: KeyRing
    client_claims: Sequence[str] = CLIENT_CLAIMS


class _Refused(Exception):
    """The token is not good; says why, for the log alone."""


class OAuthTokens:
    """The callers that hold an access token of one of these issuers."""

    def __init__(
        self,
        issuers: Sequence[Issuer],
        scope_prefix: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuers: Mapping[str, Issuer] = {one.issuer: one for one in issuers}
        self._scopes = {f"{scope_prefix}{scope}": scope for scope in Scope}
        self._clock = clock
        self._verified: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()

    async def authenticate(self, authorization: str | None) -> Caller:
        """See `Identity.authenticate`. Raises IdentityUnavailable while there are no keys."""
        token = bearer_token(authorization)
        if len(token) > TOKEN_LENGTH_MAX or not _SHAPE.fullmatch(token):
            raise errors.Unauthenticated
        digest = hashlib.sha256(token.encode()).digest()
        caller = self._seen(digest)
        if caller is None:
            caller = self._caller(await self._claims_of(token))
            self._see(digest, caller)
        return caller

    def _seen(self, digest: bytes) -> Caller | None:
        """Who a token stood for a moment ago; a client that polls brings the same one each time."""
        when, caller = self._verified.get(digest, (0.0, None))
        if caller is None or caller.until is None:
            return None
        is_good = self._clock() - when < VERIFIED_S and datetime.now(UTC) < caller.until
        return caller if is_good else None

    def _see(self, digest: bytes, caller: Caller) -> None:
        self._verified[digest] = (self._clock(), caller)
        self._verified.move_to_end(digest)
        if len(self._verified) > VERIFIED_MAX:
            self._verified.popitem(last=False)

    async def _claims_of(self, token: str) -> Mapping[str, Any]:
        """The claims of a good token. Raises Unauthenticated, and the reason is in the log."""
        try:
            return await self._proven(token)
        except (_Refused, jwt.PyJWTError, ValueError, OverflowError, RecursionError) as error:
            _log.debug("an access token is refused: %s", error)
            raise errors.Unauthenticated from None

    def knows(self, owner: str) -> bool:
        """See `Identity.knows`: whether it is one of these issuers'."""
        try:
            named = orjson.loads(owner)
        except orjson.JSONDecodeError:
            return False
        match named:
            case [str(issuer), str(), str()]:
                return issuer in self._issuers
            case _:
                return False

    async def close(self) -> None:
        """Fetch no more keys."""
        for one in self._issuers.values():
            await one.keys.close()

    async def _proven(self, token: str) -> Mapping[str, Any]:
        """The claims of a token whose signature, times and audience are right."""
        unproven = jwt.decode_complete(token, options={"verify_signature": False})
        header, named = unproven["header"], unproven["payload"].get("iss")
        issuer = self._issuers.get(named) if isinstance(named, str) else None
        if issuer is None:
            raise _Refused("its issuer is not one of ours")
        algorithm = header.get("alg")
        if algorithm not in issuer.algorithms:
            raise _Refused(f"this algorithm is not accepted from {issuer.issuer}")
        if "crit" in header:
            raise _Refused("it has critical headers")
        key = await issuer.keys.find(header.get("kid"), algorithm)
        if key is None:
            raise _Refused(f"{issuer.issuer} has no such key for this algorithm")
        claims = jwt.decode(
            token,
            key.public.key,
            algorithms=[key.algorithm],
            audience=list(issuer.audience),
            issuer=issuer.issuer,
            leeway=LEEWAY_S,
            options={"require": ["iss", "aud", "exp"], "verify_sub": False, "verify_jti": False},
        )
        _refuse_other_kinds(header.get("typ"), claims)
        return claims

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        """Who a good token stands for. Raises Unauthenticated, and says what the token lacks."""
        issuer = self._issuers[claims["iss"]]
        subject = _name(claims, ("sub",))
        client = _name(claims, issuer.client_claims)
        until = datetime.fromtimestamp(min(int(claims["exp"]) + LEEWAY_S, FAR_OFF), UTC)
        return Caller(Owner(issuer.issuer, subject, client), self._granted(claims), until)

    def _granted(self, claims: Mapping[str, Any]) -> frozenset[Scope]:
        """What `scope`, or else `scp`, grants: names in one text or in a list."""
        given = claims.get("scope", claims.get("scp"))
        names: Sequence[Any] = ()
        if isinstance(given, str):
            names = given.split(" ")
        elif isinstance(given, list):
            names = cast(list[Any], given)
        known = self._scopes
        return frozenset(known[name] for name in names if isinstance(name, str) and name in known)


def _refuse_other_kinds(kind: Any, claims: Mapping[str, Any]) -> None:
    """Raises _Refused for a token that its issuer made for something else than access."""
    if "cnf" in claims:
        raise _Refused("it is bound to a key, whose proof we cannot check")
    named = kind.lower() if isinstance(kind, str) else kind
    if named in _ACCESS_TYPES:
        return
    if named not in _PLAIN_TYPES:
        raise _Refused("its typ is not that of an access token")
    said = {str(claims.get("typ")).lower(), str(claims.get("token_use")).lower()}
    if said.intersection(_OTHER_TYPES) or any(claim in claims for claim in _ID_CLAIMS):
        raise _Refused("it is an ID token, or made for something else than access")


def _name(claims: Mapping[str, Any], names: Sequence[str]) -> str:
    for name in names:
        value = claims.get(name)
        if isinstance(value, str) and value and len(value) <= NAME_LENGTH_MAX:
            return value
    # Told to the outside: the signature is good, so whoever reads this may know.
    raise errors.Unauthenticated(f"The access token has no usable claim {' or '.join(names)}.")
