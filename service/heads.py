"""A request that is asked for many of its headers."""

from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.requests import Request


class Heads(Headers):
    """Headers by one look each; the framework goes through all of them for each that is asked for.

    Without the white space around a value, of which the HTTP parser leaves what ends it. Of two of
    one name the first counts, as there.
    """

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        super().__init__(raw=[(name, value.strip(b" \t")) for name, value in raw])
        self._first: dict[str, str] = {}
        for name, value in self.raw:
            self._first.setdefault(name.decode("latin-1"), value.decode("latin-1"))

    @property
    def are_single(self) -> bool:
        """Whether no name comes twice."""
        return len(self._first) == len(self.raw)

    def __getitem__(self, key: str) -> str:
        return self._first[key.lower()]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.lower() in self._first


class Asked(Request):
    """A request with such headers."""

    _heads: Heads | None = None

    @property
    def headers(self) -> Heads:
        """See `Request.headers`."""
        if self._heads is None:
            self._heads = Heads(self.scope["headers"])
        return self._heads
