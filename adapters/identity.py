"""Who is asking: one local owner on loopback, bearer tokens from a file, the operators' token.

Tokens of OAuth issuers are judged in `oauth.py`.
"""

import hashlib
import hmac
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..domain import errors
from ..domain.owner import LOCAL_CALLER, LOCAL_OWNER, Caller, Owner, Scope
from ..domain.ports import Identity

ISSUER = "outlast:tokens"
OPERATORS = "outlast:operators"
USUAL_SCOPES = (Scope.CALL, Scope.WATCH)

_OPERATOR = Caller(Owner(OPERATORS, "operator", "default"), frozenset({Scope.OPERATE, Scope.AUDIT}))


class LocalIdentity:
    """Everybody who can reach us is the one local owner, and may do what is said."""

    def __init__(self, scopes: frozenset[Scope] = LOCAL_CALLER.scopes) -> None:
        self._caller = Caller(LOCAL_OWNER, scopes)

    async def authenticate(self, authorization: str | None) -> Caller:
        """See `Identity.authenticate`. Never refuses; a header is ignored."""
        del authorization
        return self._caller

    def knows(self, owner: str) -> bool:
        """See `Identity.knows`."""
        return owner == LOCAL_OWNER.key


class _Token(BaseModel):
    model_config = ConfigDict(extra="forbid")
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    subject: str = Field(min_length=1)
    client: str = Field(default="default", min_length=1)
    scopes: list[Scope] = Field(default=list(USUAL_SCOPES), min_length=1)


class _TokenFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    tokens: list[_Token] = Field(min_length=1)


class StaticTokens:
    """Bearer tokens of a small team.

    The file holds their SHA-256 only: a token is random, so no salt is needed.
    """

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        self._callers = callers

    @classmethod
    def read(cls, path: Path) -> "StaticTokens":
        """Tokens of a TOML file of `[[tokens]]` tables (sha256, subject, client, scopes).

        Raises ConfigurationError, which never shows a value: it may be a token put in by mistake.
        """
        try:
            parsed = _TokenFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            wrong = "; ".join(f"{_place(it['loc'])}: {it['msg']}" for it in error.errors())
            raise _unusable(path, wrong) from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise _unusable(path, str(error)) from error
        callers: dict[str, Caller] = {}
        for number, token in enumerate(parsed.tokens):
            if token.sha256 in callers:
                raise _unusable(path, f"tokens.{number}.sha256: this token is listed twice")
            owner = Owner(ISSUER, token.subject, token.client)
            callers[token.sha256] = Caller(owner, frozenset(token.scopes))
        return cls(callers)

    async def authenticate(self, authorization: str | None) -> Caller:
        """See `Identity.authenticate`. Compares digests in constant time, every one of them."""
        given = _digest(bearer_token(authorization))
        found: Caller | None = None
        for digest, caller in self._callers.items():
            if hmac.compare_digest(digest, given):
                found = caller
        if found is None:
            raise errors.Unauthenticated
        return found

    def knows(self, owner: str) -> bool:
        """See `Identity.knows`: whether some token is this owner's."""
        return any(known.owner.key == owner for known in self._callers.values())


class OperatorToken:
    """The one token of those who operate the service, from its settings."""

    def __init__(self, token: str) -> None:
        self._digest = _digest(token)

    async def authenticate(self, authorization: str | None) -> Caller:
        """See `Identity.authenticate`. Digests are compared: not even a length is told by time."""
        if not hmac.compare_digest(_digest(bearer_token(authorization)), self._digest):
            raise errors.Unauthenticated
        return _OPERATOR

    def knows(self, owner: str) -> bool:
        """See `Identity.knows`: it has no tasks to be told of."""
        del owner
        return False


class Identities:
    """Several ways to be known; the first that knows the caller decides."""

    def __init__(self, ways: Sequence[Identity]) -> None:
        self._ways = ways

    async def authenticate(self, authorization: str | None) -> Caller:
        """See `Identity.authenticate`. The last refusal is the one that is told."""
        refused = errors.Unauthenticated()
        for way in self._ways:
            try:
                return await way.authenticate(authorization)
            except errors.Unauthenticated as error:
                refused = error
        raise refused

    def knows(self, owner: str) -> bool:
        """See `Identity.knows`."""
        return any(way.knows(owner) for way in self._ways)


def bearer_token(authorization: str | None) -> str:
    """The token in a header's value. Raises Unauthenticated."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise errors.Unauthenticated
    return token.strip()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location))


def _unusable(path: Path, wrong: str) -> errors.ConfigurationError:
    return errors.ConfigurationError(f"the token file {path} cannot be used: {wrong}")
