"""`GET /metrics`: figures of this process for Prometheus, each read when it is asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from ..domain import errors
from ..domain.ports import Identity
from .guard import Guard
from .jsonrpc import Rejection

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


class Metrics:
    """The page, under the same guard and identity as everything else."""

    def __init__(self, figures: Mapping[str, Figure], identity: Identity, guard: Guard) -> None:
        self._identity, self._guard = identity, guard
        self._registry = CollectorRegistry()
        for name, figure in figures.items():
            gauge = Gauge(name, figure.meaning, registry=self._registry)
            gauge.set_function(figure.read)

    async def get(self, request: Request) -> Response:
        """The figures as text."""
        try:
            self._guard.check(request.headers.get("host"), request.headers.get("origin"))
            await self._identity.authenticate(request.headers.get("authorization"))
        except Rejection as error:
            return Response(error.message, status_code=error.status)
        except errors.Unauthenticated as error:
            challenge = {"WWW-Authenticate": "Bearer"}
            return Response(str(error), status_code=401, headers=challenge)
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE)
