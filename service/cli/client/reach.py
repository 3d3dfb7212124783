"""Which server, as whom, and where it is written down: the options of all commands, looked at."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ....domain import errors
from ...client import Webhook
from ...client.client import JOURNAL

SERVER = "http://127.0.0.1:8000/mcp"
Via = Literal["auto", "poll", "listen", "websocket", "webhook"]


@dataclass(frozen=True)
class Reach:
    """A server and a journal."""

    server: str
    token: str | None = field(repr=False)
    journal: Path
    via: Via = "auto"
    webhook: Webhook = field(default_factory=Webhook)


def reach(server: str, token: str | None, journal: Path | None, via: Via = "auto") -> Reach:
    """The options, looked at. Raises ConfigurationError."""
    if not server.startswith(("http://", "https://")):
        raise errors.ConfigurationError("--server must be an http(s) URL")
    token = (token or "").strip() or None
    # Looked at here: the HTTP library would show in its error what it cannot send.
    if token is not None and not (token.isascii() and token.isprintable()):
        raise errors.ConfigurationError("--token holds what no header can carry")
    return Reach(server, token, journal or JOURNAL, via)
