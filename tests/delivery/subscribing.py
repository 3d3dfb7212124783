"""Subscribe calls as a server on the internet gets them, and an endpoint that is no socket."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from outlast.delivery.port import EventsRequest
from outlast.delivery.webhook.exchange import Outcome, WebhookClient
from outlast.delivery.webhook.subscriptions import SubscriptionMethods
from outlast.domain import draft
from outlast.tests.delivery.webhook_world import ALICE, SECRET, World

URL = "https://hooks.example/mcp/c1"
RAW = bytes([251, 255, 190] * 11)  # in base64 a + and a /, and padding


class Endpoint(WebhookClient):
    """Every endpoint there is: keeps what is posted, and answers a challenge as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.posted: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self.answer = Outcome(200, None)
        self.echo: Any = None  # None for what was asked, else what stands in its place
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], *, head_bytes: int = 0
    ) -> Outcome:
        self.posted.append(url)
        self.headers.append(headers)
        await self.may_answer.wait()
        nonce = orjson.loads(body)["challenge"]
        echo = orjson.dumps({"challenge": nonce}) if self.echo is None else self.echo(nonce)
        return replace(self.answer, body_head=echo[:head_bytes])


def strict(here: World, endpoint: Endpoint, **more: Any) -> SubscriptionMethods:
    """As a server on the internet has it."""
    return here.methods(endpoint, **{"allow_loopback": False, **more})


def delivery(**changes: Any) -> dict[str, Any]:
    return {"mode": "webhook", "url": URL, "secret": SECRET, **changes}


def asks(owner: str = ALICE, **changes: Any) -> EventsRequest:
    params = {"name": draft.TASK_UPDATED, "arguments": {}, "delivery": delivery(), **changes}
    return EventsRequest(owner, True, 1, params)
