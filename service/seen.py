"""What requests are counted by: the methods that there are, and the tools of the catalogue.

A label is never a word that only a client has said: their number has a bound.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any, cast

from ..domain.tallies import SECONDS, Histogram
from .endpoint import Method, Result
from .exchange import Exchange
from .figures import Counters, Families, Histograms

TOOLS_MAX = 500  # tools that have a label of their own
OTHER = "other"
OK, ERROR, GONE = "ok", "error", "gone"
CALL = "tools/call"


class Seen:
    """The requests of this process, since it began."""

    def __init__(self) -> None:
        self._times: dict[str, Histogram] = {}
        self._outcomes: Counter[tuple[str, ...]] = Counter()
        self._calls: Counter[tuple[str, ...]] = Counter()
        self._tools: set[str] = set()

    def families(self) -> Families:
        """What `/metrics` tells of them."""
        return {
            "outlast_requests": Counters(
                "Requests, by method and how they ended.",
                ("method", "outcome"),
                lambda: self._outcomes,
            ),
            "outlast_request_seconds": Histograms(
                "How long a request took until its answer was there.",
                ("method",),
                lambda: {(method,): times for method, times in self._times.items()},
            ),
            "outlast_tool_calls": Counters(
                "Calls of tools, by tool of the catalogue and what came of the request.",
                ("tool", "outcome"),
                lambda: self._calls,
            ),
        }

    def over(self, methods: Mapping[str, Method]) -> dict[str, Method]:
        """The same methods, seen."""
        seen = {name: self._timed(name, method) for name, method in methods.items()}
        if CALL in seen:
            seen[CALL] = self._counted(seen[CALL])
        return seen

    def _timed(self, name: str, method: Method) -> Method:
        times = self._times[name] = Histogram(SECONDS)
        outcomes, clock, observe = self._outcomes, time.perf_counter, times.observe
        ok, failed, gone = (name, OK), (name, ERROR), (name, GONE)

        async def timed(exchange: Exchange) -> Result:
            begun, outcome = clock(), failed
            try:
                result = await method(exchange)
                outcome = ok
                return result
            except asyncio.CancelledError:
                outcome = gone
                raise
            finally:
                observe(clock() - begun)
                outcomes[outcome] += 1

        return timed

    def _counted(self, call: Method) -> Method:
        def counted(exchange: Exchange) -> Coroutine[Any, Any, Result]:
            return self._call(call, exchange)

        return counted

    async def _call(self, call: Method, exchange: Exchange) -> Result:
        name, outcome, is_known = exchange.params.get("name"), ERROR, False
        try:
            result = await call(exchange)
            outcome, is_known = outcome_of(result), True
            return result
        except asyncio.CancelledError:
            outcome = GONE
            raise
        finally:
            self._calls[self._tool(name, is_known=is_known), outcome] += 1

    def _tool(self, name: object, *, is_known: bool) -> str:
        """The tool's own name once the catalogue has known it: only then a call is answered."""
        if not isinstance(name, str):
            return OTHER
        if is_known and len(self._tools) < TOOLS_MAX:
            self._tools.add(name)
        return name if name in self._tools else OTHER


def outcome_of(result: Result) -> str:
    """In a word: a task, a question, or an answer, which may be the tool's error."""
    given: Mapping[str, Any] = cast(Mapping[str, Any], result) if isinstance(result, dict) else {}
    kind = given.get("resultType")
    if kind in ("task", "input_required"):
        return str(kind)
    return "tool_error" if given.get("isError") is True else OK
