"""`GET /metrics`: figures of this process for Prometheus, each read when it is asked for."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from ..domain.owner import Scope
from .access import Access

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


class Refusals(Collector):
    """How often each limit was met. A limit appears with its first refusal."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[CounterMetricFamily]:
        """See `Collector.collect`."""
        meaning = "Requests refused because a limit was reached, by the limit's name."
        family = CounterMetricFamily("outlast_refusals", meaning, labels=["limit"])
        for limit, count in sorted(self._counts.items()):
            family.add_metric([limit], count)
        yield family


class Metrics:
    """The page, for who may operate the service."""

    def __init__(
        self,
        figures: Mapping[str, Figure],
        access: Access,
        refusals: Mapping[str, int] | None = None,
    ) -> None:
        self._access = access
        self._registry = CollectorRegistry()
        for name, figure in figures.items():
            gauge = Gauge(name, figure.meaning, registry=self._registry)
            gauge.set_function(figure.read)
        if refusals is not None:
            self._registry.register(Refusals(refusals))

    async def get(self, request: Request) -> Response:
        """The figures as text."""
        entered = await self._access.enter(request, Scope.OPERATE)
        if isinstance(entered, Response):
            return entered
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE)
