"""`outlast cancel`: ask for the end of tasks. What a tool then does is its own affair."""

from collections.abc import Sequence
from typing import Annotated

import typer

from ....domain import errors
from . import codes, completion, following, options
from .options import JournalOption, JsonOption, ServerOption, TokenOption
from .outcomes import Outcome
from .reach import SERVER, Reach, reach
from .session import Session, session

EXAMPLES = options.examples("outlast cancel TASK_ID", "outlast cancel ID1 ID2 --json")


def cancel(
    task_ids: Annotated[
        list[str],
        typer.Argument(metavar="TASK_ID...", help="The tasks.", autocompletion=completion.task_ids),
    ],
    as_json: JsonOption = False,
    server: ServerOption = SERVER,
    token: TokenOption = None,
    journal: JournalOption = None,
) -> None:
    """Ask the server to cancel tasks. An ended one stays as it ended."""
    at = reach(server, token, journal)
    raise options.run(_cancel(at, task_ids, as_json=as_json))


async def _cancel(at: Reach, task_ids: Sequence[str], *, as_json: bool) -> int:
    async with session(at, as_json=as_json, many=True) as here:
        ended = [await _asked(here, task_id) for task_id in task_ids]
    return max(outcome.code for outcome in ended)


async def _asked(here: Session, task_id: str) -> Outcome:
    handle = here.client.task(task_id)
    try:
        await handle.cancel()
        outcome = Outcome("cancel_requested", codes.DONE, task_id, handle.tool)
    except errors.OutlastError as error:
        outcome = following.unknown(error, task_id, handle.tool)
    here.screen.ended(outcome)
    return outcome
