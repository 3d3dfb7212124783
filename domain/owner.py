"""Whose task it is: (issuer, subject, client), encoded so that no two owners share a key.

And who is asking now: the owner, what this caller may do, and until when.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property


@dataclass(frozen=True)
class Owner:
    """The authorization context that a task is bound to (tasks specification, "Auth binding")."""

    issuer: str
    subject: str
    client: str

    @cached_property
    def key(self) -> str:
        """One string for stores and comparisons; JSON, so that no separator can collide."""
        return json.dumps([self.issuer, self.subject, self.client], separators=(",", ":"))


class Scope(StrEnum):
    """What a caller may do. None of them implies another."""

    CALL = "call"  # start work, answer it, cancel it
    WATCH = "watch"  # learn how the owner's own tasks stand
    OPERATE = "operate"  # see and mend the service: figures, webhooks of every owner
    AUDIT = "audit"  # read what happened, of every owner


@dataclass(frozen=True)
class Caller:
    """One request's identity. `until` is when it ends by itself; None for never."""

    owner: Owner
    scopes: frozenset[Scope]
    until: datetime | None = None


LOCAL_OWNER = Owner("local", "local", "local")
LOCAL_CALLER = Caller(LOCAL_OWNER, frozenset(Scope))
