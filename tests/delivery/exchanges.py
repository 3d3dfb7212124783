"""Posting to endpoints on loopback under the development switch, and endpoints that misbehave."""

from datetime import UTC, datetime

import anyio

from outlast.delivery.webhook.exchange import Limits, Outcome, WebhookClient
from outlast.tests.delivery.internet import Answer, Endpoint, Exchange, Internet, endpoint

NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
SHORT = Limits(connect_s=0.5, total_s=0.5, drain_s=0.2, place_s=0.3)
PATIENCE_S = 30  # what a machine under load may take; each limit under test is far shorter
BODY = b'{"eventId":"evt_1"}'
HEADERS = {"webhook-id": "evt_1", "webhook-signature": "v1,aaaa v1,bbbb"}


def dev_client(limits: Limits | None = None, internet: Internet | None = None) -> WebhookClient:
    return WebhookClient(
        allow_loopback_http=True,
        limits=limits,
        resolve=None,
        dial=internet or Internet(),
        now=lambda: NOW,
    )


def at(served: Endpoint, target: str = "/hook") -> str:
    return f"http://127.0.0.1:{served.port}{target}"


async def post(client: WebhookClient, url: str, head_bytes: int = 0) -> Outcome:
    with anyio.fail_after(PATIENCE_S):
        return await client.post(url, BODY, HEADERS, head_bytes=head_bytes)


def seen(outcome: Outcome) -> tuple[int | None, str | None]:
    return outcome.status, outcome.category


async def outcome_of(answer: Answer, head_bytes: int = 0, limits: Limits | None = None) -> Outcome:
    async with endpoint(answer) as served, dev_client(limits) as client:
        return await post(client, at(served), head_bytes)


def dripping(first: bytes, drop: bytes, gone: anyio.Event) -> Answer:
    """Says `first` at once, and then a drop at a time until the test has its outcome."""

    async def answer(exchange: Exchange) -> None:
        await exchange.stream.send(first)
        while not gone.is_set():
            with anyio.move_on_after(0.02):
                await gone.wait()
            await exchange.stream.send(drop)

    return answer


def flooding(first: bytes, chunk: bytes) -> Answer:
    """Says `first`, and then as much as it gets rid of."""

    async def answer(exchange: Exchange) -> None:
        await exchange.stream.send(first)
        while True:
            await exchange.stream.send(chunk)

    return answer


async def silent(exchange: Exchange) -> None:
    await anyio.Event().wait()


async def hanging_up(exchange: Exchange) -> None:
    await exchange.stream.aclose()
