"""The client: its end of the wire, its journal, and the ways that it hears of tasks."""

import hashlib
import json
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import httpx2

from ...adapters import inbox, journal
from ...delivery.auto import AutoSource
from ...delivery.calling import CallingRemote
from ...delivery.listen import ListenSource
from ...delivery.polling import PollingSource
from ...delivery.remote import ANSWER_S_MAX, CONNECT_S_MAX
from ...delivery.webhook.keyring import MemoryKeyring
from ...delivery.webhook.receiver import Receiver
from ...delivery.webhook.source import WebhookSource
from ...delivery.webhook.subscriber import Subscribing
from ...delivery.websocket import WebSocketSource
from ...domain import base64url, draft, errors
from ...domain.clienting import Journal, StatusSource
from ..client.client import Wanted
from ..client.hook import served
from ..client.reach import Reach
from .store import now

CONNECTIONS_MAX = 1000  # a stream a task; a plain request must never wait for one of those to end


@asynccontextmanager
async def reaching(wanted: Wanted) -> AsyncGenerator[Reach]:
    """What a client works with. Raises ConfigurationError, StoreUnavailable."""
    if not wanted.url.startswith(("http://", "https://")):
        raise errors.ConfigurationError("a client needs the http(s) URL of an MCP endpoint")
    headers = {} if wanted.token is None else {"Authorization": f"Bearer {wanted.token}"}
    capabilities: dict[str, Any] = dict(wanted.input.capabilities)
    if wanted.via == "webhook":
        capabilities["extensions"] = {draft.EVENTS_EXTENSION: dict[str, Any]()}
    timeout = httpx2.Timeout(ANSWER_S_MAX, connect=CONNECT_S_MAX)
    limits = httpx2.Limits(max_connections=CONNECTIONS_MAX)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=timeout, limits=limits))
        remote = CallingRemote(wanted.url, http, headers, capabilities)
        source = await _source(wanted, remote, stack)
        kept = await _journal(wanted.journal, stack)
        yield Reach(wanted.url, owner_of(wanted.token), remote, source, kept, now)


async def _journal(wanted: Path | Journal | None, stack: AsyncExitStack) -> Journal:
    if wanted is None:
        return journal.MemoryJournal()
    if not isinstance(wanted, Path):
        return wanted
    kept = await journal.SqliteJournal.open(wanted, now)
    stack.push_async_callback(kept.close)
    return kept


async def _source(wanted: Wanted, remote: CallingRemote, stack: AsyncExitStack) -> StatusSource:
    match wanted.via:
        case "polling" | "poll":
            return PollingSource(remote)
        case "listen":
            return ListenSource(remote)
        case "websocket":
            return WebSocketSource(remote, socket_url(wanted.url))
        case "webhook":
            return await _webhook(wanted, remote, stack)
        case "auto":
            # A WebSocket tells nothing that the stream does not: it is for who cannot have that.
            better = [ListenSource(remote), WebSocketSource(remote, socket_url(wanted.url))]
            return AutoSource(remote, PollingSource(remote), better)


async def _webhook(wanted: Wanted, remote: CallingRemote, stack: AsyncExitStack) -> StatusSource:
    """An endpoint of our own. What it misses is read from the server: its inbox is no keepsake."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="outlast-"))
    store = await inbox.SqliteInbox.open(Path(folder) / "inbox.db", now)
    stack.push_async_callback(store.close)
    keyring = MemoryKeyring()
    receiver = Receiver(store, keyring, now)
    address = await stack.enter_async_context(
        served(receiver, wanted.webhook.host, wanted.webhook.port)
    )
    url = wanted.webhook.url or address
    return WebhookSource(Subscribing(remote, keyring, store, now), receiver, url)


def socket_url(url: str) -> str:
    """The WebSocket beside an MCP endpoint: `…/ws` in place of `…/mcp`."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/mcp") + "/ws"
    scheme = "wss" if parts.scheme == "https" else "ws"
    return urlunsplit((scheme, parts.netloc, path, "", ""))


def owner_of(token: str | None) -> str:
    """Who a token speaks for, as a digest: the claims of a JWT, which outlive it, or its text."""
    if token is None:
        return "anonymous"
    claims = _claims(token)
    who = [claims.get(name) for name in ("iss", "sub", "client_id", "azp")]
    told = json.dumps(who) if claims.get("sub") else token
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def _claims(token: str) -> dict[str, Any]:
    """The claims of a JWT, unproven: they only tell our own entries apart."""
    parts = token.split(".")
    if len(parts) != 3:  # noqa: PLR2004 - three parts make a JWT
        return {}
    try:
        claims = json.loads(base64url.decoded(parts[1]))
    except ValueError:
        return {}
    return cast(dict[str, Any], claims) if isinstance(claims, dict) else {}
