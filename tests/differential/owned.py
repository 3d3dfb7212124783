"""What a gateway owns of an answer: the one table of what may differ. All else is equal.

A row names a method or `*`, the path of what may differ, and why. A path begins in the JSON-RPC
message; `status` and `content` are those of HTTP, and `()` is the whole answer. `spoilt` limits a
row to requests that are spoilt in that way, `when` to what the two sides may then have there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

INFO = "io.modelcontextprotocol/serverInfo"
CLIENT = "io.modelcontextprotocol/clientInfo"
MISSING = object()  # what a side has where it has nothing
When = Callable[[Any, Any], bool]


@dataclass(frozen=True)
class Owned:
    """One row."""

    method: str
    path: tuple[str, ...]
    why: str
    spoilt: str | None = None
    when: When = lambda direct, through: True


def is_added(direct: Any, through: Any) -> bool:
    """Outlast has it, and the upstream nothing."""
    return direct is MISSING and through is not MISSING


def is_nothing(direct: Any, through: Any) -> bool:
    """None, or null, and an empty object."""
    return direct in (MISSING, None) and through == {}


def is_unread(direct: Any, through: Any) -> bool:
    """The upstream has null."""
    return direct is None


def both_refuse(direct: Any, through: Any) -> bool:
    """Neither serves it: of a whole answer."""
    return min(direct.status, through.status) >= 400


def refused_by_us(direct: Any, through: Any) -> bool:
    """Outlast says that the parameters are not valid, and the upstream that the tool failed."""
    return through.code == -32602 and direct.result.get("isError") is True


def served_by_us(direct: Any, through: Any) -> bool:
    """Outlast serves what the upstream refuses for its headers."""
    return direct.status == 406 and through.status == 200


SAW = ("result", "structuredContent", "params")

GATEWAY_OWNS = (
    Owned("*", ("result", "_meta", INFO), "it is Outlast that the client is talking to"),
    Owned("server/discover", ("result", "instructions"), "Outlast adds how tasks are used"),
    Owned("server/discover", ("result", "ttlMs"), "how long Outlast's own answer keeps"),
    Owned("server/discover", ("result", "cacheScope"), "Outlast answers all callers alike"),
    Owned("server/discover", ("result", "capabilities", "extensions"), "tasks end at Outlast"),
    Owned("server/discover", ("result", "capabilities", "events"), "events are of Outlast"),
    Owned("*", ("result", "nextCursor"), "pages are Outlast's; whole walks are compared"),
    Owned("*", ("result", "requestState"), "sealed for its owner; the next round is compared"),
    Owned(
        "resources/read",
        ("result", "ttlMs"),
        "this revision demands it: a server that leaves it out is completed",
        when=is_added,
    ),
    Owned("resources/read", ("result", "cacheScope"), "the same", when=is_added),
    Owned("*", ("id",), "MCP has no null id: it is left out, or could be read", when=is_unread),
    # What the upstream is told: seen by its tool `saw`, which gives it back.
    Owned("tools/call", (*SAW, "_meta", CLIENT), "its client is Outlast"),
    Owned("tools/call", (*SAW, "_meta", "progressToken"), "the exchange with it has its own"),
    Owned("tools/call", (*SAW, "arguments"), "none are sent as none: {}", when=is_nothing),
    Owned(
        "tools/call",
        ("result", "structuredContent", "headers", "mcp-name"),
        "encoded only where it must be",
        "encoded",
    ),
    # HTTP, and JSON-RPC
    Owned("*", (), "Outlast serves who reads JSON alone, or says nothing", "accept", served_by_us),
    Owned("*", (), "each refuses it in its own words", "content-type", both_refuse),
    Owned("*", (), "without the header the SDK thinks of an older era", "version=", both_refuse),
    Owned("*", (), "null is no object; the SDK takes it for none", "params=None", both_refuse),
    Owned("tools/call", (), "an unknown tool is an error of the protocol", "name", refused_by_us),
)
