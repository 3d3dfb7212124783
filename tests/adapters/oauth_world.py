"""One issuer, the identity that trusts it, and the clock between them, moved by hand."""

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from outlast.adapters import jwks, oauth
from outlast.domain import errors
from outlast.tests.support.issuing import AUDIENCE, Issuer, SigningKey, issuing

ALGORITHMS = tuple(jwks.FITTING)
BOUND_S = 60.0
RSA = SigningKey.made("rsa-1", "RS256")
EC = SigningKey.made("ec-1", "ES256")
ROTATED = SigningKey.made("ec-2", "ES256")


class Clock:
    """The time of the key rings, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclasses.dataclass
class World:
    """One issuer, the identity that trusts it, and the clock between them."""

    issuer: Issuer
    identity: oauth.OAuthTokens
    clock: Clock

    async def opens(self, token: str) -> bool:
        """Whether it does; whoever is refused is told the same, whatever the reason."""
        try:
            await self.caller(token)
        except errors.Unauthenticated as error:
            if str(error) != "A valid bearer token is required.":
                raise
            return False
        return True

    async def caller(self, token: str) -> Any:
        with anyio.fail_after(BOUND_S):
            return await self.identity.authenticate(f"Bearer {token}")


def trusted(
    issuer: Issuer, clock: Clock, jwks_url: str | None = None, **changed: Any
) -> oauth.Issuer:
    source = jwks.KeySource(issuer.url, jwks_url)
    ring = jwks.KeyRing(issuer.url, source, clock)
    return oauth.Issuer(issuer.url, [AUDIENCE], ALGORITHMS, ring, **changed)


@asynccontextmanager
async def a_world(
    *keys: SigningKey, metadata: str | None = None, discovers: bool = False, **changed: Any
) -> AsyncGenerator[World]:
    async with issuing(*(keys or (EC,)), metadata=metadata) as issuer:
        clock = Clock()
        url = None if discovers else issuer.jwks_url
        identity = oauth.OAuthTokens([trusted(issuer, clock, url, **changed)], "outlast:", clock)
        try:
            yield World(issuer, identity, clock)
        finally:
            await identity.close()
