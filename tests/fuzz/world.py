"""The served system that inputs are thrown at, and what its store holds before and after each."""

import threading
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import psycopg
from psycopg import sql

from outlast.adapters.identity import ISSUER
from outlast.domain import decisions
from outlast.domain.decisions import Ask
from outlast.domain.owner import Owner
from outlast.service.callbacks import Tickets
from outlast.tests.fuzz.wire import Line, Request
from outlast.tests.service.test_owners import token_file
from outlast.tests.support.publishing import Publisher, now, publishing
from outlast.tests.support.serving import Serving, command_of, serving

KEY = "a key for the fuzzing that is long enough"
ALICE, BOB = "alice-token-5c1e", "bob-token-31d0"
OPERATOR = "the-token-of-all-operators-which-is-long-enough"
TOKENS = {ALICE: ("alice", "desk"), BOB: ("bob", "desk")}
UPSTREAM = Path(__file__).with_name("upstream.py")

CONFIG = f"""
[server]
tokens_file = "tokens.toml"
secret_key = "{KEY}"
admin_token = "{OPERATOR}"
log_level = "warning"
[defaults]
run = "task"
grace = "5s"
[upstreams.fuzz]
command = {command_of(UPSTREAM)}
[tools.echo_direct]
run = "direct"
[tools.echo_auto]
run = "auto"
[tools.echo_only]
run = "task-only"
[tools.sign_before]
ask = "before"
[tools.region]
run = "auto"
[events]
development = true
[quotas]
tasks_per_owner = "unlimited"
working_per_owner = "unlimited"
parked_per_owner = "unlimited"
bytes_per_owner = "unlimited"
calls_per_minute = "unlimited"
polls_per_minute = "unlimited"
"""

# What a client's request may come to write. Subscriptions and deliveries are left out, as they end
# by themselves: one to tasks that have ended is stored, told all there is, and refused.
COUNTED = (
    "task_events",
    "task_view",
    "past_events",
    "past_tasks",
    "data_keys",
    "run_queue",
)
COUNTS = sql.SQL("SELECT {}, (SELECT coalesce(sum(version), 0) FROM outlast.task_view)").format(
    sql.SQL(", ").join(
        sql.SQL("(SELECT count(*) FROM outlast.{})").format(sql.Identifier(table))
        for table in COUNTED
    )
)
QUESTIONS = (
    Ask(
        "who",
        {
            "method": "elicitation/create",
            "params": {
                "message": "Who signs?",
                "requestedSchema": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "maxLength": 20},
                        "count": {"type": "integer", "minimum": 0},
                        "colour": {"enum": ["red", "blue"]},
                    },
                    "required": ["name"],
                },
            },
        },
    ),
    Ask("draft", {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 9}}),
    Ask("roots", {"method": "roots/list", "params": {}}),
)


def key_of(token: str) -> str:
    return Owner(ISSUER, *TOKENS[token]).key


class Store:
    """Whether anything was written. A look at the server's transaction counter settles most."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._at, self._held = "", {}

    def has_changed(self) -> Mapping[str, tuple[int, int]]:
        """Each table whose rows are not as many as at the last look: how many, before and now."""
        row = self._connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
        (at,) = row.fetchone() or ("",)
        if at == self._at:  # nobody has written anything, anywhere
            return {}
        self._at = at
        held = self._connection.execute(COUNTS).fetchone() or ()
        named = dict(zip((*COUNTED, "versions"), map(int, held), strict=True))
        before, self._held = self._held, named
        return {
            name: (before.get(name, 0), count)
            for name, count in named.items()
            if before.get(name) != count
        }


@dataclass
class World:
    """One served Outlast that runs no tasks, its store, and tasks of alice's and of bob's."""

    server: Serving
    store: Store
    publisher: Publisher
    hook: str
    task_ids: tuple[str, ...]
    task_of_bob: str = ""

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.server.base_url)
        return parts.hostname or "", parts.port or 0

    def line(self) -> Line:
        return Line(*self.address)

    def assert_alive(self) -> None:
        """The same process answers still, and nothing surprised it."""
        assert self.server.process.returncode is None, self.server.log.read_text()
        with self.line() as line:
            answer = line.ask(Request("GET", b"/healthz", [(b"host", b"127.0.0.1")], b""))
        assert answer is not None
        assert answer.status == 200, answer
        surprises = [line for line in self.server.log.read_text().splitlines() if _is_error(line)]
        assert surprises == [], surprises

    async def parked(self) -> str:
        """A task of alice's that waits for three answers."""
        task_id = await self.publisher.opened(owner=key_of(ALICE), upstream="fuzz")
        await self.publisher.happens(
            task_id,
            lambda task: decisions.finish_leg(task, task.attempt, QUESTIONS, "state", now()),
        )
        return task_id

    async def delegated(self) -> tuple[str, str]:
        """The callback of a task of alice's whose job runs elsewhere: its path and its secret."""
        task_id = await self.publisher.opened(owner=key_of(ALICE), upstream="fuzz", tool="measured")
        await self.publisher.happens(
            task_id, lambda task: decisions.delegate(task, task.attempt, None, now())
        )
        offered = Tickets(KEY, self.server.base_url).offer(self.publisher.tasks[task_id])
        assert offered is not None
        return urlsplit(offered["url"]).path, offered["secret"]


def _is_error(line: str) -> bool:
    """Whether a line of the log says that something went wrong here, and not at the client."""
    try:
        told = orjson.loads(line)
    except orjson.JSONDecodeError:
        return "Traceback" in line
    return told["level"] == "error"


@asynccontextmanager
async def world(folder: Path, database_url: str) -> AsyncGenerator[World]:
    """A server on this database, with one task for each thing that a task can be."""
    (folder / "tokens.toml").write_text(token_file(TOKENS))
    with (
        publishing(database_url) as publisher,
        endpoint() as hook,
        psycopg.connect(database_url, autocommit=True) as connection,
    ):
        async with serving(folder, CONFIG, database_url, ["--no-work"]) as server:
            here = World(server, Store(connection), publisher, hook, ("x" * 43, "", "a\0b"))
            ids = [await here.parked(), (await publisher.opened(owner=key_of(ALICE)))]
            ended = await publisher.opened(owner=key_of(ALICE))
            await publisher.ends(ended)
            of_bob = await publisher.opened(owner=key_of(BOB))
            here.task_ids = (*ids, ended, of_bob, *here.task_ids)
            here.task_of_bob = of_bob
            here.store.has_changed()
            yield here
            here.assert_alive()


class _Hook(BaseHTTPRequestHandler):
    """Takes every delivery, and proves its intent when it is asked to."""

    def do_POST(self) -> None:
        """Answer one delivery."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            told = orjson.loads(body)
        except orjson.JSONDecodeError:
            told = {}
        challenge = told.get("challenge") if isinstance(told, dict) else None
        content = b"" if challenge is None else orjson.dumps({"challenge": challenge})
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@contextmanager
def endpoint() -> Generator[str]:
    """The URL of a webhook endpoint on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
