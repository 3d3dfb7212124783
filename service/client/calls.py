"""One `tools/call` from the intent to a result or a task: written down, sent, asked for more.

The order is what makes it safe. The intent is on the disk before the request leaves; an answer is
before it is sent; a task id is before anybody sees the handle. A server that knows idempotency
keys is sent the very same call again when nobody can say whether it arrived; another one is not.
"""

import hashlib
import json
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from ...domain import errors
from ...domain.clienting import IDEMPOTENCY_META_KEY, Entry, InputRequired, InvalidAnswer
from .inputs import Handlers, handled
from .reach import Pauses, Reach, digest_of

RESEND_S_MAX = 60.0  # how long a call is sent again after a lost connection
ROUNDS_MAX = 100  # of questions to one call: a server that never has enough is broken
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
KEYED_SERVER = "outlast"
MAY_PASS = frozenset({401, 403, -32603})  # refusals that say nothing about what was sent before

Json = dict[str, Any]


@dataclass(frozen=True)
class Created:
    """The call became a task; `entry` knows its id."""

    entry: Entry
    task: Mapping[str, Any]


class Calls:
    """Calls tools of one server."""

    def __init__(self, reach: Reach, handlers: Handlers) -> None:
        self._reach, self._handlers = reach, handlers
        self._is_keyed: bool | None = None
        self.in_flight: set[str] = set()  # entries that are no business of `resume`

    async def call(
        self, tool: str, arguments: Mapping[str, Any], key: str | None, *, asks: bool
    ) -> Json | Created:
        """The result, or the task. Raises RequestRefused, ConnectionLost, InputRequired."""
        pauses = Pauses(RESEND_S_MAX)
        while True:
            try:
                is_keyed = await self.is_keyed()
                break
            except errors.ConnectionLost as error:
                await pauses.after(error)
        if key is None and is_keyed:
            key = uuid.uuid4().hex
        entry = self._reach.new_entry(
            tool=tool,
            digest=digest_of(tool, arguments),
            idempotency_key=key,
            is_keyed=is_keyed,
            arguments=arguments,
        )
        with self._under_way(entry):
            await self._reach.journal.begin(entry)
            return await self.carry_out(entry, asks=asks)

    async def carry_out(
        self, entry: Entry, *, asks: bool, is_resent: bool = False
    ) -> Json | Created:
        """Send a call that is written down, for the first time or again. Raises as `call` does."""
        with self._under_way(entry):
            try:
                outcome = await self._judged(entry, await self._rounds(entry, asks=asks))
            except (errors.RequestRefused, InputRequired, InvalidAnswer) as error:
                if not (is_resent and _may_pass(error)):
                    await self._reach.journal.end(entry.id, "refused")
                raise
            if not isinstance(outcome, Created):
                await self._reach.journal.end(entry.id, "answered")
            return outcome

    async def is_keyed(self) -> bool:
        """Whether a call that comes twice under one key runs once. Raises ConnectionLost."""
        if self._is_keyed is not None:
            return self._is_keyed
        try:
            answer = await self._reach.server.request("server/discover", {})
        except errors.RequestRefused as error:
            if error.code in MAY_PASS:
                raise
            answer = Json()
        meta = _object(answer.get("_meta"))
        is_keyed = _object(meta.get(SERVER_INFO)).get("name") == KEYED_SERVER
        self._is_keyed = is_keyed
        return is_keyed

    @contextmanager
    def _under_way(self, entry: Entry) -> Generator[None]:
        self.in_flight.add(entry.id)
        try:
            yield
        finally:
            self.in_flight.discard(entry.id)

    async def _judged(self, entry: Entry, answer: Json) -> Json | Created:
        kind = answer.get("resultType", "complete")
        if kind == "complete":
            return {name: value for name, value in answer.items() if name != "resultType"}
        task_id = answer.get("taskId")
        if kind != "task" or not isinstance(task_id, str) or not task_id:
            raise InvalidAnswer(f"the server answered a call with {kind!r}")
        await self._reach.journal.accept(entry.id, task_id)
        return Created(replace(entry, task_id=task_id, arguments=None), answer)

    async def _rounds(self, entry: Entry, *, asks: bool) -> Json:
        """The answer that is no question."""
        params: Json = {"name": entry.tool, "arguments": dict(entry.arguments or {})}
        if entry.idempotency_key is not None:
            params["_meta"] = {IDEMPOTENCY_META_KEY: entry.idempotency_key}
        known, more = dict(entry.answers), Json()
        waits = Pauses(None)
        for number in range(ROUNDS_MAX):
            answer = await self._sent(entry, {**params, **more})
            if answer.get("resultType") != "input_required":
                return answer
            asked = cast(Mapping[str, Json], _object(answer.get("inputRequests")))
            more = {}
            if asked:
                more["inputResponses"] = await self._answers(entry, number, asked, known, asks=asks)
            else:
                await waits.after(errors.ConnectionLost())  # only a checkpoint: not a hot loop
            if "requestState" in answer:
                more["requestState"] = answer["requestState"]
        raise InvalidAnswer("the server asks again and again")

    async def _sent(self, entry: Entry, params: Json) -> Json:
        pauses, slowed = Pauses(RESEND_S_MAX if entry.is_keyed else 0.0), Pauses(RESEND_S_MAX)
        while True:
            try:
                return await self._reach.server.call(params)
            except errors.SlowDown as error:  # it has certainly not run
                await slowed.after(error)
            except errors.ConnectionLost as error:
                await pauses.after(error)

    async def _answers(
        self, entry: Entry, number: int, asked: Mapping[str, Json], known: Json, *, asks: bool
    ) -> Json:
        """What the handlers say, or said before a crash to the same question of the same round."""
        labels = {key: _label(number, key, request) for key, request in asked.items()}
        open_ones = {key: asked[key] for key, label in labels.items() if label not in known}
        found = {key: self._handlers.of(request) for key, request in open_ones.items()}
        if open_ones and not (asks and all(found.values())):
            raise InputRequired(open_ones)
        for key, handler in found.items():
            if handler is None:
                continue
            known[labels[key]] = dict(await handled(handler, asked[key]))
            await self._reach.journal.answer(entry.id, {labels[key]: known[labels[key]]})
        return {key: known[label] for key, label in labels.items()}


def _label(number: int, key: str, request: Json) -> str:
    """The name of a call's question in the journal: no task's key, and the same after a crash."""
    told = json.dumps(request, sort_keys=True)
    return f"call/{number}/{key}/{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def _may_pass(error: errors.OutlastError) -> bool:
    """Whether a later attempt may find the task of an earlier one all the same."""
    return isinstance(error, InputRequired) or getattr(error, "code", None) in MAY_PASS


def _object(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, dict) else {}
