"""The tasks of 2025-11-25, out of the very streams that ours are made of: no state of their own.

`tasks/list` is read from the owner's journal, in the order in which the tasks were made. A page
looks at a bounded stretch of it, so it may be short, or empty, and still have a next one.
"""

import asyncio
import base64
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from ...domain import draft, errors
from ...domain.clienting import TERMINAL
from ...domain.push import Filter, Page
from .. import jsonrpc
from ..exchange import Exchange
from . import shapes
from .asking import Context
from .calls import exchange_of
from .waiting import Waiting

LOOK_EVENTS = 500  # of the owner's journal, for one page
CANCEL_S_MAX = 5.0  # a tool that takes longer to stop is told of as it stands then


class Journal(Protocol):
    """The events of an owner in the order of their commits: the one method that is needed."""

    async def after(self, owner: str, wanted: Filter, position: int, limit: int) -> Page:
        """See `domain/push.py`."""
        ...


@dataclass(frozen=True)
class OlderTasks:
    """`tasks/get`, `tasks/result`, `tasks/cancel` and `tasks/list` as that revision has them."""

    waiting: Waiting
    journal: Journal

    async def get(self, context: Context) -> dict[str, Any]:
        """The task as it stands."""
        return shapes.task(await self._detailed(exchange_of(context), _task_id(context)))

    async def result(self, context: Context) -> dict[str, Any]:
        """What the call would have answered; waits for it, and asks the client what it asks."""
        task_id = _task_id(context)
        result = await self.waiting.result(context, exchange_of(context), task_id, marked=True)
        return shapes.related(shapes.plain(result), task_id)

    async def cancel(self, context: Context) -> dict[str, Any]:
        """Ask for its end, and tell how it stands once it has ended, or does not for long."""
        exchange, task_id = exchange_of(context), _task_id(context)
        detailed = await self._detailed(exchange, task_id)
        if detailed["status"] in TERMINAL:
            message = f"The task has already ended: {shapes.task(detailed)['status']}"
            raise MCPError(INVALID_PARAMS, message)
        await self.waiting.cancel(exchange, task_id)
        # It is cancelled: whatever fails from here on, the client must not hear that it is not.
        with suppress(TimeoutError, errors.TooManyWatches, errors.StoreUnavailable):
            async with asyncio.timeout(CANCEL_S_MAX):
                detailed = await self.waiting.ended(exchange, task_id) or detailed
        if detailed["status"] not in TERMINAL:
            with suppress(errors.TooManyRequests, errors.StoreUnavailable):
                detailed = await self._detailed(exchange, task_id)
        return shapes.task(detailed)

    async def list(self, context: Context) -> dict[str, Any]:
        """One page of the caller's own tasks."""
        exchange = exchange_of(context)
        position = _position(exchange.params.get("cursor"))
        wanted = Filter(draft.TASK_UPDATED)
        page = await self.journal.after(exchange.owner.key, wanted, position, LOOK_EVENTS)
        tasks: list[dict[str, Any]] = []
        for event in page.events:
            if event.version == 1:
                with suppress(errors.TaskNotFound):  # its time is over
                    tasks.append(shapes.task(await self._detailed(exchange, event.task_id)))
        return {"tasks": tasks, **({"nextCursor": _cursor(page)} if page.has_more else {})}

    async def _detailed(self, exchange: Exchange, task_id: str) -> Mapping[str, Any]:
        look = replace(exchange, method="tasks/get", params={"taskId": task_id})
        wire = await self.waiting.methods["tasks/get"](look)
        return jsonrpc.loads(wire) if isinstance(wire, bytes) else wire


def _task_id(context: Context) -> str:
    task_id = (context.params or {}).get("taskId")
    if not isinstance(task_id, str):
        raise errors.InvalidCall("taskId must be a string")
    return task_id


def _cursor(page: Page) -> str:
    return base64.urlsafe_b64encode(str(page.read_to).encode()).decode()


def _position(cursor: Any) -> int:
    """Where a page begins. A cursor that somebody made up shows its owner's own tasks, or none."""
    if cursor is None:
        return 0
    try:
        text = base64.b64decode(cursor, altchars=b"-_", validate=True).decode("ascii")
        position = int(text) if text.isdecimal() else -1
    except (TypeError, ValueError):
        position = -1
    if not 0 <= position < 2**63:
        raise errors.InvalidCall("The cursor is not valid")
    return position
