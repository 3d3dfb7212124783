"""`GET /metrics`: figures of the service for Prometheus, each read when it is asked for.

Of several processes each has its own figures, by the label `process`: summed, a process that is
started again would make a counter fall, and nobody could tell one that is deaf from one that hears.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from ..domain.owner import Scope
from .access import Access
from .figures import Families, Labelled, OfTheStore, OwnFamilies, Told
from .siblings import Figures, Siblings

Standing = Callable[[], Awaitable[Mapping[str, float]]]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Figure:
    """One gauge: what it means, and how to read it."""

    meaning: str
    read: Callable[[], float]


# The sender's word for it, and what a gauge says of it.
_WEBHOOKS = {
    "delivered": ("delivered", "Webhook deliveries that arrived, since this process began."),
    "retried": ("retry", "Attempts that failed and are made again later."),
    "abandoned": ("abandoned", "Deliveries given up after their last attempt."),
    "suspended": ("suspended", "Times that this process suspended a subscription."),
}


def webhook_figures(counts: Mapping[str, int]) -> Mapping[str, Figure]:
    """Gauges over the live counts of a sender."""

    def figure(word: str, meaning: str) -> Figure:
        return Figure(meaning, lambda: counts.get(word, 0))

    return {f"outlast_webhooks_{name}": figure(*told) for name, told in _WEBHOOKS.items()}


class OfAll(Collector):
    """The gauges of several processes, as they have told them."""

    def __init__(self, meanings: Mapping[str, str], told: Mapping[str, Figures]) -> None:
        self._meanings, self._told = meanings, in_order(told)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """See `Collector.collect`."""
        for name, meaning in self._meanings.items():
            gauge = GaugeMetricFamily(name, meaning, labels=["process"])
            for process, figures in self._told:
                gauge.add_metric([process], figures["gauges"][name])
            yield gauge


def in_order(told: Mapping[str, Figures]) -> list[tuple[str, Figures]]:
    """The processes by their number."""
    return sorted(told.items(), key=lambda item: int(item[0]))


class Metrics:
    """The page, for who may operate the service. `siblings` has the figures of all processes.

    `standing` reads the store's, and leaves out what it could not read.
    """

    def __init__(
        self,
        figures: Mapping[str, Figure],
        access: Access,
        siblings: Siblings | None = None,
        *,
        families: Families | None = None,
        standing: Standing | None = None,
    ) -> None:
        self._access, self._siblings = access, siblings
        self._families, self._standing = families or {}, standing
        self._figures = figures
        self._registry = CollectorRegistry()
        for name, figure in figures.items():
            gauge = Gauge(name, figure.meaning, registry=self._registry)
            gauge.set_function(figure.read)
        self._registry.register(OwnFamilies(self._families))

    async def get(self, request: Request) -> Response:
        """The figures as text."""
        entered = await self._access.enter(request, Scope.OPERATE)
        if isinstance(entered, Response):
            return entered
        page = generate_latest(await self._of_all() or self._registry)
        if self._standing is not None:
            store = CollectorRegistry()
            store.register(OfTheStore(await self._standing()))
            page += generate_latest(store)
        return Response(page, media_type=CONTENT_TYPE)

    def own(self) -> Figures:
        """Those of this process, for the others."""
        gauges = {name: figure.read() for name, figure in self._figures.items()}
        told = {name: each.told() for name, each in self._families.items()}
        return {"gauges": gauges, "families": told}

    async def _of_all(self) -> CollectorRegistry | None:
        """None where this process is the only one, or hears nothing of the others."""
        if self._siblings is None:
            return None
        with suppress(TimeoutError):
            registry, told = CollectorRegistry(), await self._siblings.figures()
            meanings = {name: figure.meaning for name, figure in self._figures.items()}
            registry.register(OfAll(meanings, told))
            families: dict[str | None, Mapping[str, Told]] = {
                process: own["families"] for process, own in in_order(told)
            }
            registry.register(Labelled(self._families, families))
            return registry
        return None
