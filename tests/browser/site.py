"""What a browser looks at: a real `outlast serve`, a worker, the CI server, and who may sign in."""

import hashlib
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from outlast.adapters.oauth import LEEWAY_S
from outlast.examples import ci_server
from outlast.service.cli.demo import make_demo_repository
from outlast.tests.acceptance.waiting import until
from outlast.tests.chaos.nodes import Node
from outlast.tests.console.signin_world import RESOURCE, Issuer, issuing
from outlast.tests.support.issuing import signed
from outlast.tests.support.mcp import RawClient, http_client
from outlast.tests.support.ports import free_port
from outlast.tests.support.serving import command_of

PIPELINE = "run_ci_pipeline"
# What the service calls the first question of a task.
QUESTION = "in-1"
READY_S_MAX = 60.0
TASK_S_MAX = 90.0
ALL = ("call", "watch", "operate", "audit")
SCOPES = " ".join(f"outlast:{scope}" for scope in ALL)  # as the issuer names them
# Who there is, and what they may do. Olga runs the service.
PEOPLE: Mapping[str, tuple[str, ...]] = {
    "alice": ("call", "watch"),
    "bob": ("call", "watch"),
    "olga": ALL,
}
TEST = {"name": "test", "run": "echo 42 tests passed"}
LINT = {"name": "lint", "run": "echo clean"}
DEPLOY = {"name": "deploy", "run": "echo deployed"}
BROKEN = {"name": "test", "run": "echo 1 of 42 tests failed; exit 1"}


def token_of(person: str) -> str:
    return f"the-token-of-{person}-which-is-long-enough-to-be-one"


@dataclass
class Site:
    """The service, its address, the issuer that it trusts, and one client a person."""

    url: str
    issuer: Issuer
    server: Node
    worker: Node
    repository: Path
    http: httpx2.AsyncClient

    def client(self, person: str) -> RawClient:
        return RawClient(f"{self.url}/mcp", self.http, token_of(person))

    def token_for(self, seconds: float) -> str:
        """A token of the issuer, of who may do all, that is taken for so long from now."""
        now = int(time.time())
        claims = {"iss": self.issuer.url, "sub": "carol", "client_id": "a-browser"}
        times = {"iat": now - 60, "exp": now + int(seconds) - LEEWAY_S}
        said = {**claims, **times, "aud": RESOURCE, "scope": SCOPES}
        return signed(said, self.issuer.key)

    async def begun(self, person: str, *stages: Mapping[str, Any]) -> str:
        """A pipeline of these stages as a task."""
        arguments = {"repository": str(self.repository), "stages": list(stages)}
        return await self.client(person).opened(PIPELINE, arguments)

    async def finished(self, person: str, *stages: Mapping[str, Any]) -> str:
        """The same, once it has ended."""
        task_id = await self.begun(person, *stages)
        await self.client(person).until_status(task_id, "completed", seconds=TASK_S_MAX)
        return task_id

    async def asking(self, person: str) -> str:
        """A deployment that waits for somebody's approval."""
        task_id = await self.begun(person, TEST, DEPLOY)
        task = await self.client(person).until_status(task_id, "input_required", seconds=TASK_S_MAX)
        assert task["status"] == "input_required", task
        return task_id

    async def restarted(self) -> None:
        """The server is killed and started again, on the same port and database."""
        self.server.kill()
        self.server.start()
        await self.until_ready()

    async def until_ready(self) -> None:
        async def is_ready() -> bool:
            assert self.server.is_running, self.server.log.read_text()
            try:
                return (await self.http.get(f"{self.url}/readyz")).is_success
            except httpx2.TransportError:
                return False

        await until(is_ready, READY_S_MAX)


@asynccontextmanager
async def site(folder: Path, database_url: str) -> AsyncGenerator[Site]:
    """All of it, on free ports of loopback; in the end nothing of it is left."""
    port, config = free_port(), folder / "outlast.toml"
    (folder / "tokens.toml").write_text("".join(map(_token_table, PEOPLE)))
    repository = make_demo_repository(folder / "project")
    env = {"OUTLAST_DATABASE_URL": database_url, ci_server.STATE_KEY: "k" * 32}
    arguments = ["--config", str(config)]
    serve = ["serve", *arguments, "--port", str(port), "--no-work"]
    server = Node(folder, "serve", serve, env)
    worker = Node(folder, "worker", ["worker", *arguments], env)
    async with http_client() as http, issuing(RESOURCE) as issuer:
        config.write_text(_config(issuer.url))
        made = Site(f"http://127.0.0.1:{port}", issuer, server, worker, repository, http)
        try:
            server.start()
            await made.until_ready()
            worker.start()
            yield made
        finally:
            await worker.make_gone()
            await server.make_gone()


def _token_table(person: str) -> str:
    digest = hashlib.sha256(token_of(person).encode()).hexdigest()
    scopes = json.dumps(list(PEOPLE[person]))
    return f'[[tokens]]\nsha256 = "{digest}"\nsubject = "{person}"\nscopes = {scopes}\n'


def _config(issuer: str) -> str:
    return "\n".join(
        [
            "[server]",
            'tokens_file = "tokens.toml"',
            f'secret_key = "{"s" * 48}"',
            "audit_checkpoint_events = 1",
            "audit_checkpoint_s = 1",
            "[identity]",
            f'resource = "{RESOURCE}"',
            f'issuers = [{{ issuer = "{issuer}" }}]',
            "[events]",
            "development = true",
            "[upstreams.ci]",
            f"command = {command_of(Path(ci_server.__file__))}",
            f'env = {{ {ci_server.STATE_KEY} = "{"k" * 32}" }}',
            f"[tools.{PIPELINE}]",
            'run = "task"',
            'ttl = "1h"',
            'poll_interval = "200ms"',
            "",
        ]
    )
