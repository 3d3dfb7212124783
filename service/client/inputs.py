"""Questions on their way to whoever can answer them, and answers on their way back.

A key is asked once and answered once, in every process that shares the journal one after another:
an answer is written down before it is sent, and sent again by the next process if nobody can say
whether it arrived. A question that nobody answered yet is asked anew after a crash.
"""

import asyncio
import inspect
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from ...domain import errors
from ...domain.clienting import INVALID_PARAMS, TERMINAL
from .reach import Page, Pauses, Reach

Request = Mapping[str, Any]
Response = Mapping[str, Any]
Handler = Callable[[Request], Awaitable[Response]]

ANSWER_S_MAX = 60.0  # how long an answer given by hand is tried to be delivered
REFUSED_IDENTITY = frozenset({401, 403})
FINAL = REFUSED_IDENTITY | {INVALID_PARAMS}  # codes that say what no later attempt will change


@dataclass(frozen=True)
class Handlers:
    """Who answers what a server asks: one function a method, or one for `any`.

    Each is given the request as it stands in `inputRequests` (`{"method": …, "params": …}`) and
    returns the result that the method's specification names: for an elicitation
    `{"action": "accept", "content": {…}}`, `{"action": "decline"}` or `{"action": "cancel"}`.

    A server may ask only for what is declared, and what has a handler is declared. `by_hand`
    declares all three and leaves the questions to `TaskHandle.answer`.
    """

    elicitation: Handler | None = None
    sampling: Handler | None = None
    roots: Handler | None = None
    any: Handler | None = None
    by_hand: bool = False

    @property
    def capabilities(self) -> dict[str, Any]:
        """What this client can be asked for."""
        takes_all = self.by_hand or self.any is not None
        declared: dict[str, Any] = {}
        if takes_all or self.elicitation is not None:
            declared["elicitation"] = {"form": {}, "url": {}}
        if takes_all or self.sampling is not None:
            declared["sampling"] = {}
        if takes_all or self.roots is not None:
            declared["roots"] = {}
        return declared

    def of(self, request: Request) -> Handler | None:
        """Who answers this request; None for nobody here."""
        own: dict[Any, Handler | None] = {
            "elicitation/create": self.elicitation,
            "sampling/createMessage": self.sampling,
            "roots/list": self.roots,
        }
        return own.get(request.get("method")) or self.any


async def handled(handler: Handler, request: Request) -> Response:
    """The handler's response. A plain function may be a handler too."""
    response: Any = handler(request)
    return await response if inspect.isawaitable(response) else response


class Desk:
    """The questions of one task. `fail` is told what a handler or the server refused with."""

    def __init__(
        self,
        reach: Reach,
        handlers: Handlers,
        task_id: str,
        page: Page,
        fail: Callable[[Exception], None],
    ) -> None:
        self._reach, self._handlers, self._task_id = reach, handlers, task_id
        self._page, self._fail = page, fail
        self._answers: dict[str, Response] | None = None
        self._sent: set[str] = set()
        self._open: frozenset[str] = frozenset()  # what is asked, as long as somebody follows
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._in_hand: Counter[str] = Counter()  # how many `give` are at it at this moment
        self._at_work: dict[str, asyncio.Task[None]] = {}
        self._turns: defaultdict[Any, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def answered(self) -> frozenset[str]:
        """The keys that have an answer, sent or not."""
        return frozenset(self._answers or ()) | self._writing.keys()

    async def see(self, task: Mapping[str, Any], *, asks: bool) -> None:
        """Look at a state: ask what is new, drop what is withdrawn, send what was not sent."""
        asked = questions_of(task)
        self._open = frozenset(asked)
        answers = await self._known()
        for key in [key for key in self._at_work if key not in asked]:
            self._at_work.pop(key).cancel()
        seen_to = {*self._sent, *self._writing, *self._in_hand, *self._at_work}
        for key, request in asked.items():
            if key in seen_to:
                continue
            if key in answers:
                self._begin_sending(key, answers[key])
            elif asks and (handler := self._handlers.of(request)) is not None:
                self._begin(key, partial(self._ask, key, request, handler))

    async def give(self, responses: Mapping[str, Response], seconds: float | None) -> None:
        """Write the answers down, then send them. The first answer to a key counts.

        Raises RequestRefused, and ConnectionLost after so many seconds. Unless the server does not
        take them, they go out later then, and are tried on at once while somebody follows.
        """
        answers, keys = await self._known(), list(responses)
        self._in_hand.update(keys)
        try:
            await self._write_down(answers, responses)
            unsent = {key: answers[key] for key in keys if key in answers and key not in self._sent}
            await self._deliver(unsent, seconds)
        finally:
            self._in_hand -= Counter(keys)

    async def _write_down(
        self, answers: dict[str, Response], responses: Mapping[str, Response]
    ) -> None:
        """Return once they are, by whomever."""
        known = answers.keys() | self._writing.keys()
        fresh = {key: dict(response) for key, response in responses.items() if key not in known}
        if fresh:
            # Its own task: what is being written is known whatever becomes of who gave it.
            writing = asyncio.create_task(self._written(answers, fresh))
            writing.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._writing.update(dict.fromkeys(fresh, writing))
        for writing in {self._writing[key] for key in responses if key in self._writing}:
            await asyncio.shield(writing)

    async def _written(self, answers: dict[str, Response], fresh: Mapping[str, Response]) -> None:
        try:
            await self._page.answer(fresh)
            answers.update(fresh)
        finally:
            for key in fresh:
                del self._writing[key]
        self._go_on({key: fresh[key] for key in fresh if key not in self._in_hand})

    async def _deliver(self, unsent: Mapping[str, Response], seconds: float | None) -> None:
        try:
            await self._send(unsent, seconds)
        except errors.RequestRefused as error:
            if error.code not in FINAL:
                self._go_on(unsent)
            raise
        except (errors.ConnectionLost, asyncio.CancelledError):
            self._go_on(unsent)
            raise

    def _go_on(self, unsent: Mapping[str, Response]) -> None:
        for key in self._open.intersection(unsent).difference(self._sent, self._at_work):
            self._begin_sending(key, unsent[key])

    async def ask_no_more(self) -> None:
        """Drop the questions that are put to somebody. What was answered is sent all the same."""
        await self._drop([key for key in self._at_work if key not in self.answered])

    async def close(self) -> None:
        """Ask nothing any more. What is written down and not sent goes out the next time."""
        self._open = frozenset()
        await self._drop(list(self._at_work))
        await asyncio.gather(*self._writing.values(), return_exceptions=True)

    async def _drop(self, keys: Sequence[str]) -> None:
        tasks = [self._at_work.pop(key) for key in keys]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin_sending(self, key: str, answer: Response) -> None:
        self._begin(key, partial(self._send, {key: answer}, None))

    def _begin(self, key: str, work: Callable[[], Awaitable[None]]) -> None:
        self._at_work[key] = asyncio.create_task(self._watched(key, work))

    async def _watched(self, key: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - whatever a handler raises, `result` raises
            self._fail(error)
        finally:
            if self._at_work.get(key) is asyncio.current_task():
                del self._at_work[key]

    async def _ask(self, key: str, request: Request, handler: Handler) -> None:
        # One at a time of each kind: two prompts at once would be no prompt.
        async with self._turns[request.get("method")]:
            response = await handled(handler, request)
        await self.give({key: response}, None)

    async def _send(self, answers: Mapping[str, Response], seconds: float | None) -> None:
        pauses = Pauses(seconds)
        # What went out in another way meanwhile is not sent again.
        while unsent := {key: a for key, a in answers.items() if key not in self._sent}:
            params = {"taskId": self._task_id, "inputResponses": unsent}
            try:
                await self._reach.server.request("tasks/update", params)
            except errors.RequestRefused as error:
                if error.code in REFUSED_IDENTITY:
                    raise
                if error.code != INVALID_PARAMS:
                    await pauses.after(error)
                    continue
                if await self._is_over():
                    return
                await self._take_back(unsent)
                raise
            except errors.ConnectionLost as error:
                await pauses.after(error)
                continue
            self._sent.update(unsent)

    async def _is_over(self) -> bool:
        """Whether it was refused because of the task, of which the watch tells."""
        try:
            task = await self._reach.server.request("tasks/get", {"taskId": self._task_id})
        except errors.RemoteError:
            return True
        return task.get("status") in TERMINAL

    async def _take_back(self, answers: Mapping[str, Response]) -> None:
        known = await self._known()
        for key in answers:
            known.pop(key, None)
        await self._page.answer(dict.fromkeys(answers))

    async def _known(self) -> dict[str, Response]:
        if self._answers is None:
            known = dict(await self._page.answers())
            if self._answers is None:  # still, after the wait
                self._answers = known
        return self._answers


def questions_of(task: Mapping[str, Any]) -> Mapping[str, Request]:
    """What the task waits for, by key."""
    asked = task.get("inputRequests") if task.get("status") == "input_required" else None
    return cast(Mapping[str, Request], asked) if isinstance(asked, dict) else {}
