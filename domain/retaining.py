"""The ports of what is kept behind the clients' backs: for the audit, and until it is erased.

A task that clients may no longer ask for is *past*. Once it is *erased*, what its events held is
gone for good; that they happened, when, to whose task and with what digests stays, and so does the
event `task.erased` that says why.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol


class PastTasks(Protocol):
    """The tasks that were forgotten (`TaskViews.forget`)."""

    async def to_erase(self, before: datetime, limit: int) -> Sequence[str]:
        """Those forgotten before then and not erased, oldest first, at most `limit`."""
        ...

    async def erase(self, task_ids: Sequence[str], why: str) -> int:
        """Erase these for good, and record it; how many. No others, and none twice, are touched.

        In one commit: the data keys and the payloads are gone, and each task has its last event.
        """
        ...


class OwnedData(Protocol):
    """All that is stored of one owner."""

    async def owners(self, issuer: str, subject: str, client: str | None) -> Sequence[str]:
        """The keys of the owners so named, of every client for None, that are still known.

        Only the hash of an owner is kept once its last payload is erased: nobody finds it by name.
        """
        ...

    async def is_known(self, owner: str) -> bool:
        """Whether anything of this owner is, or ever was, stored."""
        ...

    async def stored(self, owner: str, limit: int) -> Sequence[str]:
        """Tasks of this owner that clients may still ask for, at most `limit`."""
        ...

    async def past(self, owner: str, limit: int) -> Sequence[str]:
        """Tasks of this owner that are past and not erased, at most `limit`."""
        ...

    async def drop_webhooks(self, owner: str) -> int:
        """Remove its subscriptions and all that waits or was noted for them; how many they were."""
        ...
