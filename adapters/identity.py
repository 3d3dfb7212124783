"""Who is asking: one local owner on loopback, or bearer tokens from a file."""

import hashlib
import hmac
import tomllib
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..domain import errors
from ..domain.owner import LOCAL_OWNER, Owner

ISSUER = "outlast:tokens"


class LocalIdentity:
    """Everybody who can reach the loopback interface is the one local owner."""

    async def authenticate(self, authorization: str | None) -> Owner:
        """See `Identity.authenticate`. Never refuses; a header is ignored."""
        del authorization
        return LOCAL_OWNER

    def knows(self, owner: str) -> bool:
        """See `Identity.knows`."""
        return owner == LOCAL_OWNER.key


class _Token(BaseModel):
    model_config = ConfigDict(extra="forbid")
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    subject: str = Field(min_length=1)
    client: str = Field(default="default", min_length=1)


class _TokenFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    tokens: list[_Token] = Field(min_length=1)


class StaticTokens:
    """Bearer tokens of a small team.

    The file holds their SHA-256 only: a token is random, so no salt is needed.
    """

    def __init__(self, owners: Mapping[str, Owner]) -> None:
        self._owners = owners

    @classmethod
    def read(cls, path: Path) -> "StaticTokens":
        """Tokens of a TOML file of `[[tokens]]` tables (sha256, subject, client).

        Raises ConfigurationError, which never shows a value: it may be a token put in by mistake.
        """
        try:
            parsed = _TokenFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            wrong = "; ".join(f"{_place(it['loc'])}: {it['msg']}" for it in error.errors())
            raise _unusable(path, wrong) from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise _unusable(path, str(error)) from error
        owners: dict[str, Owner] = {}
        for number, token in enumerate(parsed.tokens):
            if token.sha256 in owners:
                raise _unusable(path, f"tokens.{number}.sha256: this token is listed twice")
            owners[token.sha256] = Owner(ISSUER, token.subject, token.client)
        return cls(owners)

    async def authenticate(self, authorization: str | None) -> Owner:
        """See `Identity.authenticate`. Compares digests in constant time, every one of them."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise errors.Unauthenticated
        given = hashlib.sha256(token.strip().encode(errors="surrogatepass")).hexdigest()
        found: Owner | None = None
        for digest, owner in self._owners.items():
            if hmac.compare_digest(digest, given):
                found = owner
        if found is None:
            raise errors.Unauthenticated
        return found

    def knows(self, owner: str) -> bool:
        """See `Identity.knows`: whether some token is this owner's."""
        return any(known.key == owner for known in self._owners.values())


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location))


def _unusable(path: Path, wrong: str) -> errors.ConfigurationError:
    return errors.ConfigurationError(f"the token file {path} cannot be used: {wrong}")
