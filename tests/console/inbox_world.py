"""A served console over tasks that ask: whom the server knows, and tasks with any question."""

import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.adapters.event_log import PostgresEventLog
from outlast.adapters.identity import ISSUER
from outlast.adapters.postgres import Database
from outlast.domain import decisions
from outlast.domain.decisions import Ask
from outlast.domain.events import InputReceived
from outlast.domain.owner import Owner
from outlast.tests.console.visitor import Visitor
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.publishing import Publisher, now
from outlast.tests.support.serving import Serving, serving

ALICE, BOB = Owner(ISSUER, "alice", "default"), Owner(ISSUER, "bob", "default")
OLGA = Owner(ISSUER, "olga", "default")
WINSTON = Owner(ISSUER, "winston", "default")
SCOPES = {
    ALICE: ["call", "watch"],
    BOB: ["call", "watch"],
    OLGA: ["call", "watch", "operate"],
    WINSTON: ["watch"],
}


def token_of(owner: Owner) -> str:
    """What this one signs in with."""
    return f"the-token-of-{owner.subject}-and-of-nobody-else"


def tokens() -> str:
    """The file of all of them."""
    tables = [
        f'[[tokens]]\nsha256 = "{hashlib.sha256(token_of(owner).encode()).hexdigest()}"\n'
        f'subject = "{owner.subject}"\nscopes = {scopes}\n'
        for owner, scopes in SCOPES.items()
    ]
    return "\n".join(tables)


def elicitation(message: str, **properties: Any) -> dict[str, Any]:
    """A form's request; `required` names the fields that are."""
    required = properties.pop("required", [])
    schema = {"type": "object", "properties": properties, "required": required}
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


@dataclass(frozen=True)
class InboxWorld:
    """The server, the store under it, and who comes."""

    server: Serving
    log: PostgresEventLog
    publisher: Publisher
    stack: AsyncExitStack

    async def visitor(self, owner: Owner) -> Visitor:
        """This one, signed in."""
        http = await self.stack.enter_async_context(http_client())
        visitor = Visitor(self.server.base_url, http)
        await visitor.sign_in(token_of(owner))
        return visitor

    async def client(self, owner: Owner) -> RawClient:
        """This one's MCP client."""
        http = await self.stack.enter_async_context(http_client())
        return RawClient(self.server.url, http, token_of(owner))

    async def asked(
        self, *requests: Mapping[str, Any], owner: Owner = ALICE, tool: str = "deploy"
    ) -> str:
        """A task that asks all this, and waits."""
        task_id = await self.publisher.opened(owner=owner.key, tool=tool)
        wanted = [Ask(f"q{number}", dict(each)) for number, each in enumerate(requests)]
        await self.publisher.happens(
            task_id, lambda task: decisions.finish_leg(task, task.attempt, wanted, "state", now())
        )
        return task_id

    async def received(self, task_id: str) -> list[InputReceived]:
        """The answers that were recorded of a task."""
        history = await self.log.read(task_id)
        return [event for event in history if isinstance(event, InputReceived)]


@asynccontextmanager
async def inbox_world(
    folder: Path, database_url: str, *flags: str, server: str = ""
) -> AsyncGenerator[InboxWorld]:
    """All of it, on this database."""
    (folder / "tokens.toml").write_text(tokens())
    config = desk_config(f'tokens_file = "tokens.toml"\n{server}')
    database = Database(database_url)
    log = PostgresEventLog(database)
    await database.open()
    try:
        async with (
            serving(folder, config, database_url, flags) as served,
            AsyncExitStack() as stack,
        ):
            yield InboxWorld(served, log, Publisher(log), stack)
    finally:
        log.close()
        await database.close()
