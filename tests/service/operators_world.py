"""A served Outlast with an admin token, and webhook subscriptions in its store to look after."""

import hashlib
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from outlast.adapters.identity import ISSUER
from outlast.domain import draft
from outlast.domain.owner import Owner
from outlast.tests.acceptance.waiting import until
from outlast.tests.delivery.webhook_world import KEY, PATIENCE_S, SECRET, Hook, World, world
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.mcp import http_client
from outlast.tests.support.publishing import Publisher
from outlast.tests.support.serving import Serving, serving

ADMIN_TOKEN = "the-token-of-the-operators-and-of-nobody-else"
ALICES_TOKEN = "a-token-that-is-alice's-own-and-long-enough"
ALICE = Owner(ISSUER, "alice", "default")


def config_with(admin_token: str | None) -> str:
    """The configuration: alice is known, webhooks may go to loopback, the tests' own key."""
    server = ['tokens_file = "tokens.toml"', f'secret_key = "{KEY}"']
    if admin_token is not None:
        server.append(f'admin_token = "{admin_token}"')
    return desk_config("\n".join(server)) + "[events]\ndevelopment = true\n"


@dataclass
class Operated:
    """The server, the store under it, and who moves tasks."""

    server: Serving
    here: World
    publisher: Publisher
    http: httpx2.AsyncClient

    def url(self, path: str = "") -> str:
        return f"{self.server.base_url}/admin/webhooks{path}"

    async def get(self, path: str = "", **query: Any) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        return await self.http.get(self.url(path), params=query, headers=headers)

    async def post(self, path: str, body: Any = None) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        return await self.http.post(self.url(path), json=body or {}, headers=headers)

    async def show(self, subscription_id: str) -> Mapping[str, Any]:
        reply = await self.get(f"/{subscription_id}")
        assert reply.status_code == httpx2.codes.OK, reply.text
        return reply.json()

    async def until_shown(
        self, subscription_id: str, breaker: str | None = None, **wanted: Any
    ) -> Mapping[str, Any]:
        """What is shown, once the breaker's state and these members are so."""
        shown: list[Mapping[str, Any]] = []

        async def is_so() -> bool:
            shown.append(await self.show(subscription_id))
            is_there = breaker in (None, shown[-1]["breaker"]["state"])
            return is_there and all(shown[-1][name] == value for name, value in wanted.items())

        await until(is_so, PATIENCE_S)
        return shown[-1]

    async def subscribed(self, hook: Hook) -> "Subscribed":
        """A subscription of alice's to all tasks of a tool of its own."""
        tool = f"tool_{secrets.token_hex(4)}"
        granted = await self.here.subscribe(
            hook.url, {"tools": [tool]}, name=draft.TASK_FINISHED, owner=ALICE.key, secret=SECRET
        )
        return Subscribed(granted["id"], tool, self, hook)


@dataclass
class Subscribed:
    """One subscription, whose events the test makes."""

    id: str
    tool: str
    world: Operated
    hook: Hook

    async def finished(self) -> str:
        """A task that has ended: one event."""
        task_id = await self.world.publisher.opened(owner=ALICE.key, tool=self.tool)
        await self.world.publisher.ends(task_id)
        return task_id

    async def settled(self) -> Mapping[str, Any]:
        """What is shown once nothing waits any more."""
        return await self.world.until_shown(self.id, waiting=0)

    @property
    def webhook_ids(self) -> list[str]:
        return [post.webhook_id for post in self.hook.events]


@asynccontextmanager
async def operated(
    folder: Path, database_url: str, admin_token: str | None = ADMIN_TOKEN
) -> AsyncGenerator[Operated]:
    """A server on this database that runs no tasks, and a world on the same store."""
    digest = hashlib.sha256(ALICES_TOKEN.encode()).hexdigest()
    (folder / "tokens.toml").write_text(f'[[tokens]]\nsha256 = "{digest}"\nsubject = "alice"\n')
    config = config_with(admin_token)
    async with (
        serving(folder, config, database_url, ["--no-work"]) as server,
        world(database_url) as (here, publisher),
        http_client() as http,
    ):
        yield Operated(server, here, publisher, http)
