"""Whose task it is: (issuer, subject, client), encoded so that no two owners share a key."""

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Owner:
    """The authorization context that a task is bound to (tasks specification, "Auth binding")."""

    issuer: str
    subject: str
    client: str

    @property
    def key(self) -> str:
        """One string for stores and comparisons; JSON, so that no separator can collide."""
        return json.dumps([self.issuer, self.subject, self.client], separators=(",", ":"))


LOCAL_OWNER = Owner("local", "local", "local")
