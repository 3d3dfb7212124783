"""A running service, asked as a client and a load balancer ask it."""

from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2

from ..settings import LOOPBACK_HOSTS
from .finding import Finding, ok, problem, warning

ANSWER_S_MAX = 10.0
PROTOCOL = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
MISDIRECTED, UNAUTHORIZED, FORBIDDEN = 421, 401, 403
_DISCOVER = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "server/discover",
    "params": {
        "_meta": {
            f"{PREFIX}protocolVersion": PROTOCOL,
            f"{PREFIX}clientInfo": {"name": "outlast-doctor", "version": "1"},
            f"{PREFIX}clientCapabilities": {},
        }
    },
}
_HEADERS = {
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": PROTOCOL,
    "Mcp-Method": "server/discover",
}


def base_of(url: str) -> str:
    """The service's address, whether its endpoint was given or not."""
    return url.rstrip("/").removesuffix("/mcp")


async def check_deployment(url: str, version: str, token: str | None) -> list[Finding]:
    """What it answers at `/healthz`, `/readyz` and `/mcp`."""
    base = base_of(url)
    if not _is_url(base):
        says = "--url is no URL of a service."
        return [problem("service", says, "Give it like https://tasks.example.")]
    found = list(_transport(base))
    async with httpx2.AsyncClient(timeout=ANSWER_S_MAX) as http:
        try:
            health = await http.get(f"{base}/healthz")
            ready = await http.get(f"{base}/readyz")
            headers = _HEADERS | ({"Authorization": f"Bearer {token}"} if token else {})
            told = await http.post(f"{base}/mcp", json=_DISCOVER, headers=headers)
        except httpx2.TransportError as error:
            return [*found, _unreached(error)]
    return [*found, _health(health), _ready(ready), _endpoint(told, version)]


def _is_url(text: str) -> bool:
    try:
        parts, _ = urlsplit(text), httpx2.URL(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except (httpx2.InvalidURL, ValueError):
        return False


def _transport(base: str) -> Iterator[Finding]:
    parts = urlsplit(base)
    if parts.scheme == "https":
        yield ok("tls", "Clients reach it by https.")
    elif parts.hostname not in LOOPBACK_HOSTS:
        yield warning(
            "tls",
            "Clients reach it by plain http: tokens and results can be read on the way.",
            "Put TLS before it (docs/deployment.md).",
        )


def _unreached(error: httpx2.TransportError) -> Finding:
    if "CERTIFICATE" in str(error).upper():
        says = "Its certificate is not valid for this name, or of no authority that is known here."
        return problem("tls", says, "Renew the certificate, and serve its whole chain.")
    return problem("service", "It cannot be reached.", "See that it runs, and what is before it.")


def _health(reply: httpx2.Response) -> Finding:
    if reply.is_success:
        return ok("health", "The process answers.")
    says = f"/healthz answers {reply.status_code}."
    return problem("health", says, "See that --url leads to Outlast, and what is before it.")


def _ready(reply: httpx2.Response) -> Finding:
    if reply.is_success:
        return ok("ready", "It reaches its database.")
    says = f"It does not reach its database: /readyz answers {reply.status_code}."
    return problem("ready", says, "Run doctor where it runs, with its own settings.")


def _endpoint(reply: httpx2.Response, version: str) -> Finding:
    if reply.status_code == MISDIRECTED:
        says = "It does not answer to this name."
        return problem("endpoint", says, "Add the name to allowed_hosts.")
    if reply.status_code in (UNAUTHORIZED, FORBIDDEN):
        return ok("endpoint", "It asks who is calling; its version it tells those it knows.")
    found = _version_in(reply)
    if found is None:
        says = f"/mcp answers {reply.status_code}, and not as Outlast does."
        return problem("endpoint", says, "See that --url leads to Outlast, and what is before it.")
    if found != version:
        says = f"It is version {found}, and this is {version}."
        return warning("endpoint", says, "Finish the upgrade, or run the doctor of its release.")
    return ok("endpoint", f"It answers, as version {found}.")


def _version_in(reply: httpx2.Response) -> str | None:
    try:
        body: Any = reply.json()
        result = cast(dict[str, Any], body)["result"]
        info = result.get("serverInfo") or result["_meta"][f"{PREFIX}serverInfo"]
        return str(info["version"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
