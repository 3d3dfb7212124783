"""One request as a method sees it: who asks, what they declared, and a way to say how far it is."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..domain import draft, extension
from ..domain.owner import Caller, Owner
from ..domain.ports import Progress
from .jsonrpc import RequestId

IDEMPOTENCY_META_KEY = "dev.outlast/idempotencyKey"

PROGRESS_BACKLOG_MAX = 64  # a client that reads slower than this sees the latest ones only


@dataclass(frozen=True)
class Exchange:
    """Stateless: all of it comes from this one request (basic protocol, "Statelessness")."""

    caller: Caller
    request_id: RequestId
    method: str
    params: Mapping[str, Any]
    capabilities: Mapping[str, Any]
    headers: Mapping[str, str]

    @cached_property
    def progress(self) -> asyncio.Queue[Progress]:
        """What is still to be passed on."""
        return asyncio.Queue(PROGRESS_BACKLOG_MAX)

    @cached_property
    def progress_told(self) -> asyncio.Event:
        """Set by the first progress."""
        return asyncio.Event()

    @property
    def owner(self) -> Owner:
        """Whose tasks this request is about."""
        return self.caller.owner

    @property
    def meta(self) -> Mapping[str, Any]:
        """The request's `_meta`."""
        return self.params.get("_meta") or {}

    @property
    def declares_tasks(self) -> bool:
        """True when this very request declares the tasks extension."""
        return extension.declares_tasks(self.capabilities)

    @property
    def declares_events(self) -> bool:
        """True when this very request declares events."""
        return draft.declares_events(self.capabilities)

    @property
    def progress_token(self) -> str | int | None:
        """What the client asked progress under; None when it did not."""
        token = self.meta.get("progressToken")
        return token if isinstance(token, str | int) and not isinstance(token, bool) else None

    def tell(self, progress: Progress) -> None:
        """Pass progress on if the client asked for it; drop the oldest when it does not read."""
        if self.progress_token is None:
            return
        if self.progress.full():
            self.progress.get_nowait()
        self.progress.put_nowait(progress)
        self.progress_told.set()
