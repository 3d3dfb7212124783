"""A served console with people of several scopes who have signed in, and tasks to look at."""

import hashlib
import html
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psycopg

from outlast.adapters.identity import ISSUER
from outlast.domain.owner import Owner
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.publishing import Publisher, publishing
from outlast.tests.support.serving import Serving, serving

SCOPES = {
    "alice": '["call", "watch"]',
    "bob": '["call", "watch"]',
    "watcher": '["watch"]',
    "operator": '["call", "watch", "operate"]',
    "auditor": '["watch", "audit"]',
    "examiner": '["audit"]',
    "starter": '["call"]',
}
TOKENS = {who: f"the-token-of-{who}-which-is-long-enough" for who in SCOPES}
OWNERS = {who: Owner(ISSUER, who, "default").key for who in SCOPES}
OK, SEE_OTHER, NOT_FOUND = httpx2.codes.OK, httpx2.codes.SEE_OTHER, httpx2.codes.NOT_FOUND
_INPUT = re.compile(r"<input[^>]*>")


def inputs_of(page: str) -> dict[str, str]:
    """The hidden fields of a page's forms."""
    found: dict[str, str] = {}
    for tag in _INPUT.findall(page):
        given = dict(re.findall(r'(\w+)="([^"]*)"', tag))
        if given.get("type") == "hidden":
            found[given["name"]] = html.unescape(given.get("value", ""))
    return found


def text_of(page: str) -> str:
    """What stands on a page, without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


@dataclass
class Browser:
    """Somebody who has signed in."""

    base: str
    http: httpx2.AsyncClient

    async def get(self, path: str) -> httpx2.Response:
        return await self.http.get(f"{self.base}/console{path}")

    async def page(self, path: str) -> str:
        reply = await self.get(path)
        assert reply.status_code == OK, reply.text
        return reply.text

    async def post(self, path: str, fields: Mapping[str, str]) -> httpx2.Response:
        headers = {"origin": self.base, "sec-fetch-site": "same-origin"}
        return await self.http.post(f"{self.base}/console{path}", data=fields, headers=headers)

    async def sign_in(self, token: str) -> None:
        """By the form, as a person does."""
        fields = inputs_of(await self.page("/sign-in"))
        reply = await self.post("/sign-in", {**fields, "token": token})
        assert reply.status_code == SEE_OTHER, reply.text


@dataclass
class Console:
    """The server, and who has signed in."""

    server: Serving
    publisher: Publisher
    browsers: Mapping[str, Browser]

    def __getitem__(self, who: str) -> Browser:
        return self.browsers[who]

    def client(self, who: str) -> RawClient:
        return RawClient(self.server.url, self.browsers[who].http, TOKENS[who])

    async def opened(self, who: str = "alice", **changes: Any) -> str:
        return await self.publisher.opened(owner=OWNERS[who], **changes)

    async def told(self, task_id: str, who: str = "alice") -> bytes:
        """The bytes of the task in the answer of `tasks/get`, as they were sent."""
        return (await self.client(who).request("tasks/get", {"taskId": task_id})).content

    def does(self, statement: str, *params: Any) -> None:
        with psycopg.connect(self.server.database_url, autocommit=True) as connection:
            connection.execute(statement.encode(), params)


@asynccontextmanager
async def seen(folder: Path, database_url: str) -> AsyncGenerator[Console]:
    """A server on this database that runs no tasks, and everybody in front of it."""
    (folder / "tokens.toml").write_text(
        "".join(
            f'[[tokens]]\nsha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\n'
            f'subject = "{who}"\nscopes = {SCOPES[who]}\n'
            for who, token in TOKENS.items()
        )
    )
    config = desk_config('tokens_file = "tokens.toml"')
    config += '[console]\nredact = ["national_id", "arguments.card.number"]\n'
    clients = {who: http_client() for who in TOKENS}
    async with serving(folder, config, database_url, ["--no-work"]) as server:
        browsers = {who: Browser(server.base_url, http) for who, http in clients.items()}
        for who, browser in browsers.items():
            await browser.sign_in(TOKENS[who])
        with publishing(database_url) as publisher:
            yield Console(server, publisher, browsers)
        for http in clients.values():
            await http.aclose()


def is_what_was_told(answer: bytes, state: bytes) -> bool:
    """Whether an answer of tasks/get holds exactly this state: beside it is `resultType` alone."""
    return answer.endswith(b"," + state.removeprefix(b"{") + b"}")
