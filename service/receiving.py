"""What the stand-alone receiver is asked to do, and what it hands on."""

import hashlib
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Wanted:
    """Which events of which server, posted to which URL of ours, kept in which file."""

    server: str
    token: str | None = field(repr=False)
    url: str
    name: str
    arguments: Mapping[str, Any]
    ttl_ms: int | None
    inbox: Path

    @property
    def record(self) -> Path:
        """The file of this very subscription, beside the inbox, which several may share."""
        names = [self.server, self.url, self.name, self.arguments]
        digest = hashlib.sha256(json.dumps(names, sort_keys=True).encode()).hexdigest()
        return self.inbox.with_name(f"{self.inbox.name}.{digest[:16]}.json")


class Received(Protocol):
    """One delivery. `envelope` is None for an event, else the control envelope's type."""

    @property
    def subscription_id(self) -> str:
        """The subscription that brought it."""
        ...

    @property
    def webhook_id(self) -> str:
        """The same each time that it comes."""
        ...

    @property
    def envelope(self) -> str | None:
        """The type of a control envelope."""
        ...

    @property
    def content(self) -> Mapping[str, Any]:
        """The body."""
        ...


class Deliveries(Protocol):
    """Where deliveries are read from."""

    def received(self) -> AsyncGenerator[Received]:
        """What was stored, oldest first, until the subscription is over.

        Each is done when the next is asked for. Raises StoreUnavailable.
        """
        ...
