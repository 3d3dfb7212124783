"""Host and Origin: who may reach a server on loopback through a browser (DNS rebinding)."""

from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

from .jsonrpc import Rejection

_FORBIDDEN = -32600
ANY = "*"
NAMES_KEPT = 64  # most requests name one of a few


class Guard:
    """Refuses requests for a name that is not ours, and from pages that are not."""

    def __init__(self, hosts: Collection[str], origins: Collection[str]) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower() for origin in origins)

    def check(self, host: str | None, origin: str | None) -> None:
        """Raises Rejection: 421 for a foreign Host, 403 for a foreign Origin."""
        if ANY not in self._hosts and _name_of(f"//{host}") not in self._hosts:
            raise Rejection(_FORBIDDEN, "The Host header names another server", status=421)
        if (
            origin is not None
            and ANY not in self._origins
            and _name_of(origin) not in self._origins
        ):
            raise Rejection(_FORBIDDEN, "The Origin header is not allowed", status=403)


@lru_cache(NAMES_KEPT)
def _name_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
