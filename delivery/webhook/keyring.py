"""Which secrets a receiver takes for its own, and for what."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Protocol

import anyio

from ...domain import errors

EXPECTED_MAX = 16  # each costs one HMAC for a message from a stranger


class Keyring(Protocol):
    """The secrets that a receiver verifies with. Each subscription has its own: the header that
    names the subscription is not signed."""

    async def secrets_of(self, subscription_id: str) -> Sequence[bytes]:
        """The secrets of this subscription, two while one is replaced; none for an unknown one."""
        ...

    async def expected(self) -> Sequence[bytes]:
        """The secrets of subscribe calls under way.

        A server challenges the endpoint before it answers with the subscription's id, so these
        are good for a challenge under any id, and for nothing else.
        """
        ...

    async def changed(self) -> None:
        """Return once a subscription may have been given secrets. May return early."""
        ...


class MemoryKeyring:
    """The keyring of one process, filled by whoever subscribes there."""

    def __init__(self) -> None:
        self._bound: dict[str, tuple[bytes, ...]] = {}
        self._expected: list[bytes] = []
        self._bell = anyio.Event()

    async def secrets_of(self, subscription_id: str) -> Sequence[bytes]:
        """The secrets of this subscription."""
        return self._bound.get(subscription_id, ())

    async def expected(self) -> Sequence[bytes]:
        """The secrets of subscribe calls under way."""
        return tuple(self._expected)

    async def changed(self) -> None:
        """Return once a subscription was bound."""
        await self._bell.wait()

    @contextmanager
    def expecting(self, secret: bytes) -> Generator[None]:
        """For the time of a subscribe call, and until `bind`. Raises TooManyWatches."""
        if len(self._expected) >= EXPECTED_MAX:
            raise errors.TooManyWatches("subscribe calls under way", EXPECTED_MAX)
        self._expected.append(secret)
        try:
            yield
        finally:
            self._expected.remove(secret)

    def bind(self, subscription_id: str, *secrets: bytes) -> None:
        """From now on the subscription has these secrets and no others."""
        self._bound[subscription_id] = secrets
        self._bell.set()
        self._bell = anyio.Event()

    def forget(self, subscription_id: str) -> None:
        """The subscription is over. Idempotent."""
        self._bound.pop(subscription_id, None)
