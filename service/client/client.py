"""`TaskClient`: call a tool, keep the task, come back for it after a crash."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary

from ...domain import errors
from ...domain.clienting import ClientTimeout, Entry, InputRequired, InvalidAnswer, Journal
from .calls import Calls, Created
from .following import Following
from .handle import TaskHandle
from .inputs import Handlers
from .reach import Reach
from .sync import SyncTaskClient, synchronous

Via = Literal["auto", "polling", "poll", "listen", "websocket", "webhook"]

JOURNAL = Path(".outlast") / "client.db"
RESEND_WITHIN = timedelta(hours=1)  # after a crash; a server forgets a key with its task


@dataclass(frozen=True)
class Webhook:
    """Where a server can post to us, for `via="webhook"`: we listen on `host` and `port`.

    `url` is how that is reached from there; left out, it is this very address, which only a server
    on this machine that allows it can post to. A `port` of 0 is any free one.
    """

    host: str = "127.0.0.1"
    port: int = 0
    url: str | None = None


@dataclass(frozen=True)
class Wanted:
    """What `TaskClient.connect` was asked for."""

    url: str
    token: str | None = field(default=None, repr=False)
    via: Via = "auto"
    journal: Path | Journal | None = JOURNAL
    input: Handlers = field(default_factory=Handlers)
    webhook: Webhook = field(default_factory=Webhook)


class Resumed(list[TaskHandle]):
    """The tasks that go on, and what else was found of calls that a crash interrupted.

    `lost`: nobody can say whether they arrived, and to send them again might run them twice.
    `results`: they were answered at once. `failures`: they could not be settled now.
    """

    def __init__(self, handles: Sequence[TaskHandle] = ()) -> None:
        super().__init__(handles)
        self.lost: list[Entry] = []
        self.results: list[tuple[Entry, dict[str, Any]]] = []
        self.failures: list[tuple[Entry, errors.OutlastError]] = []


class TaskClient:
    """A client of one MCP server that never loses a task.

    Made by `connect`:

        async with TaskClient.connect("http://127.0.0.1:8000/mcp") as client:
            outcome = await client.call_tool("run_ci_pipeline", {"branch": "main"})
            result = await outcome.result() if isinstance(outcome, TaskHandle) else outcome
    """

    def __init__(self, reach: Reach, handlers: Handlers) -> None:
        self._reach, self._handlers = reach, handlers
        self._calls = Calls(reach, handlers)
        self._followings: WeakValueDictionary[str, Following] = WeakValueDictionary()

    @classmethod
    def connect(  # noqa: PLR0913 - a person reads them by name, and gives one or two
        cls,
        url: str,
        token: str | None = None,
        via: Via = "auto",
        journal: Path | Journal | None = JOURNAL,
        input: Handlers | None = None,  # noqa: A002 - the word for it in the protocol
        *,
        webhook: Webhook | None = None,
    ) -> AbstractAsyncContextManager["TaskClient"]:
        """A client of the MCP endpoint at `url`, which speaks as the owner of `token`.

        `via` says how to hear of tasks: `polling`, `listen`, `websocket`, `webhook` (see
        `Webhook`), or `auto` for the best that both sides support. `journal` is where unfinished
        tasks are written down: a file, a `Journal` of your own, or None to forget them with this
        process. `input` answers what the server asks. Raises ConfigurationError, StoreUnavailable.
        """
        wanted = Wanted(url, token, via, journal, input or Handlers(), webhook or Webhook())
        return _connected(wanted)

    @classmethod
    def sync(cls, url: str, **options: Any) -> AbstractContextManager["SyncTaskClient"]:
        """The same for code without an event loop; takes what `connect` takes."""
        return synchronous(cls.connect, url, options)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        ask: bool = True,
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Any] | TaskHandle:
        """Call a tool: its result, or a handle of the task that it became.

        Two calls with one `idempotency_key` are one, on a server that knows such keys; there each
        call has one, so that it can be sent again. What the server wants to know before is asked of
        the handlers, unless `ask` is False.

        Raises RequestRefused for a JSON-RPC error; InputRequired when it asks and nobody may
        answer; ConnectionLost when nobody can say whether the call arrived (`resume` finds out
        what can be found out); ClientTimeout.
        """
        scope = asyncio.timeout(timeout_s)
        try:
            async with scope:
                outcome = await self._calls.call(name, arguments or {}, idempotency_key, asks=ask)
        except TimeoutError:
            if scope.expired():
                raise ClientTimeout("The time is over; `resume` finds the call again.") from None
            raise
        return self._handle(outcome) if isinstance(outcome, Created) else outcome

    def task(self, task_id: str) -> TaskHandle:
        """A task that exists, by its id. Nothing is asked yet."""
        return TaskHandle(self._reach, self._following(task_id))

    async def resume(self) -> Resumed:
        """Every unfinished task of the journal for this server and owner, and see `Resumed`.

        A call without a task id is sent again under its key, if the server knows keys and it is
        not too long ago; otherwise it is lost, which is said once. Raises StoreUnavailable.
        """
        found = Resumed()
        for entry in await self._reach.entries():
            if entry.ended is not None or entry.id in self._calls.in_flight:
                continue
            if entry.task_id is not None:
                found.append(TaskHandle(self._reach, self._following(entry.task_id, entry)))
            else:
                await self._settle(entry, found)
        return found

    async def journal_entries(self) -> AsyncGenerator[Entry]:
        """What the journal has of this server and owner, oldest first, finished ones included."""
        for entry in await self._reach.entries():
            yield entry

    async def close(self) -> None:
        """Watch and ask no more. Tasks go on; whoever waits raises ConnectionLost. Idempotent."""
        for following in list(self._followings.values()):
            await following.dismiss(errors.ConnectionLost("the client was closed"))

    async def _settle(self, entry: Entry, found: Resumed) -> None:
        """Find out what became of a call that was perhaps sent."""
        is_recent = self._reach.clock() - entry.made_at <= RESEND_WITHIN
        try:
            may_resend = entry.is_keyed and is_recent and await self._calls.is_keyed()
            if not may_resend:
                await self._lose(entry, found)
                return
            outcome = await self._calls.carry_out(entry, asks=True, is_resent=True)
        except (errors.RemoteError, InputRequired, InvalidAnswer) as error:
            found.failures.append((entry, error))
            return
        if isinstance(outcome, Created):
            found.append(self._handle(outcome))
        else:
            found.results.append((entry, outcome))

    async def _lose(self, entry: Entry, found: Resumed) -> None:
        """Say that a call is lost, unless it went on or ended since the journal was read."""
        if await self._reach.journal.end(entry.id, "lost") is not False:
            found.lost.append(entry)
            return
        for now in await self._reach.entries():
            if now.id == entry.id and now.ended is None and now.task_id is not None:
                found.append(TaskHandle(self._reach, self._following(now.task_id, now)))

    def _handle(self, created: Created) -> TaskHandle:
        task_id = str(created.entry.task_id)
        return TaskHandle(self._reach, self._following(task_id, created.entry, created.task))

    def _following(
        self, task_id: str, entry: Entry | None = None, created: Mapping[str, Any] | None = None
    ) -> Following:
        known = self._followings.get(task_id)
        if known is None:
            known = Following(self._reach, self._handlers, task_id, entry, created)
            self._followings[task_id] = known
        return known


@asynccontextmanager
async def _connected(wanted: Wanted) -> AsyncGenerator[TaskClient]:
    from .. import wiring  # the whole of the server is behind it: not at import

    async with wiring.reaching(wanted) as reach:
        client = TaskClient(reach, wanted.input)
        try:
            yield client
        finally:
            await client.close()
