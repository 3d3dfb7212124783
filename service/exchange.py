"""One request as a method sees it: who asks, what they declared, what they are told on the way."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mcp_types import LOG_LEVEL_META_KEY

from ..domain import draft, extension
from ..domain.owner import Caller, Owner
from ..domain.ports import Logged, Progress
from .jsonrpc import RequestId, dumps

IDEMPOTENCY_META_KEY = "dev.outlast/idempotencyKey"

Asker = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]

NEWS_BACKLOG_MAX = 256  # a client that reads slower than this is told the latest only


@dataclass(frozen=True)
class Exchange:
    """Stateless: all of it comes from this one request (basic protocol, "Statelessness").

    `headers` is None where what brought the request has none. `ask` puts a question to the client
    while it waits, where its era has that.
    """

    caller: Caller
    request_id: RequestId
    method: str
    params: Mapping[str, Any]
    capabilities: Mapping[str, Any]
    headers: Mapping[str, str] | None
    ask: Asker | None = None

    @cached_property
    def news(self) -> asyncio.Queue[Progress | Logged]:
        """What is still to be passed on, in order."""
        return asyncio.Queue(NEWS_BACKLOG_MAX)

    @cached_property
    def told(self) -> asyncio.Event:
        """Set by the first news."""
        return asyncio.Event()

    @property
    def owner(self) -> Owner:
        """Whose tasks this request is about."""
        return self.caller.owner

    @cached_property
    def meta(self) -> Mapping[str, Any]:
        """The request's `_meta`."""
        return self.params.get("_meta") or {}

    @property
    def declares_tasks(self) -> bool:
        """True when this very request declares the tasks extension."""
        return extension.declares_tasks(self.capabilities)

    @property
    def declares_events(self) -> bool:
        """True when this very request declares events."""
        return draft.declares_events(self.capabilities)

    def within(self, trace: Mapping[str, str]) -> "Exchange":
        """The same one, whose `_meta` names another place in the trace."""
        inner = replace(self, params={**self.params, "_meta": {**self.meta, **trace}})
        vars(inner).update(news=self.news, told=self.told)  # who listens listens to one queue
        return inner

    @property
    def progress_token(self) -> str | int | None:
        """What the client asked progress under; None when it did not."""
        token = self.meta.get("progressToken")
        return token if isinstance(token, str | int) and not isinstance(token, bool) else None

    @property
    def wants_news(self) -> bool:
        """True when the client asked to be told of progress or of log messages."""
        return self.progress_token is not None or LOG_LEVEL_META_KEY in self.meta

    def tell(self, news: Progress | Logged) -> None:
        """Pass on what the client asked for; drop the oldest when it does not read."""
        if isinstance(news, Progress) and self.progress_token is None:
            return
        if self.news.full():
            self.news.get_nowait()
        self.news.put_nowait(news)
        self.told.set()

    async def news_until(
        self, work: "asyncio.Future[Any]", quiet_s: float | None = None
    ) -> AsyncGenerator[Progress | Logged | None]:
        """All news until the work is over, in order; None each time that none has come for long."""
        while not work.done():
            news = asyncio.ensure_future(self.news.get())
            try:
                await asyncio.wait(
                    {work, news}, timeout=quiet_s, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                told = news.done()
                news.cancel()
            if told:
                yield news.result()
            elif not work.done():
                yield None
        while not self.news.empty():
            yield self.news.get_nowait()

    def notification(self, news: Progress | Logged) -> bytes:
        """The JSON text of the notification that tells this."""
        if isinstance(news, Logged):
            method, params = "notifications/message", dict(news.params)
        else:
            method = "notifications/progress"
            params = {"progressToken": self.progress_token, "progress": news.progress}
            if news.total is not None:
                params["total"] = news.total
            if news.message is not None:
                params["message"] = news.message
        return dumps({"jsonrpc": "2.0", "method": method, "params": params})
