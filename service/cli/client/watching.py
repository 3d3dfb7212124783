"""`outlast watch` and `outlast resume`: tasks that were begun before are followed to their ends."""

from dataclasses import replace

from ....domain import errors
from ....domain.clienting import InputRequired
from ...client import Resumed
from . import codes, options, outcomes
from .following import unknown, waiting
from .interrupts import Interrupted
from .options import (
    JournalOption,
    JsonOption,
    ServerOption,
    TaskId,
    TimeoutOption,
    TokenOption,
    ViaOption,
    WebhookListenOption,
    WebhookUrlOption,
)
from .outcomes import Outcome
from .reach import SERVER, Reach, reach
from .session import session

WATCH_EXAMPLES = options.examples(
    "outlast watch TASK_ID",
    "outlast watch TASK_ID --via listen",
    "outlast watch TASK_ID --json --timeout 5m",
)
RESUME_EXAMPLES = options.examples("outlast resume", "outlast resume --via poll --json")


def watch(  # noqa: PLR0913, PLR0917 - one option a parameter is how typer reads them
    task_id: TaskId,
    timeout: TimeoutOption = None,
    via: ViaOption = "auto",
    webhook_url: WebhookUrlOption = None,
    webhook_listen: WebhookListenOption = options.LISTEN,
    as_json: JsonOption = False,
    server: ServerOption = SERVER,
    token: TokenOption = None,
    journal: JournalOption = None,
) -> None:
    """Follow a task to its end, answer what it asks, and print its result."""
    hook, seconds = options.webhook(webhook_url, webhook_listen), options.seconds(timeout)
    at = replace(reach(server, token, journal, via), webhook=hook)
    raise options.run(_watch(at, task_id, seconds, as_json=as_json))


def resume(  # noqa: PLR0913, PLR0917 - one option a parameter is how typer reads them
    timeout: TimeoutOption = None,
    via: ViaOption = "auto",
    webhook_url: WebhookUrlOption = None,
    webhook_listen: WebhookListenOption = options.LISTEN,
    as_json: JsonOption = False,
    server: ServerOption = SERVER,
    token: TokenOption = None,
    journal: JournalOption = None,
) -> None:
    """Pick up every unfinished task of the journal, at this server, and follow all to their ends.

    The exit code is the highest of theirs.
    """
    hook, seconds = options.webhook(webhook_url, webhook_listen), options.seconds(timeout)
    at = replace(reach(server, token, journal, via), webhook=hook)
    raise options.run(_resume(at, seconds, as_json=as_json))


async def _watch(at: Reach, task_id: str, timeout_s: float | None, *, as_json: bool) -> int:
    async with session(at, as_json=as_json) as here:
        handle = here.client.task(task_id)
        here.screen.began(task_id, handle.tool)
        [outcome] = await here.follower.follow([handle], timeout_s)
        return outcome.code


async def _resume(at: Reach, timeout_s: float | None, *, as_json: bool) -> int:
    async with session(at, as_json=as_json, many=True) as here:
        try:
            found = await here.interrupts.breaking(here.client.resume)
        except Interrupted:
            return codes.LEFT_RUNNING
        settled = _settled(found)
        if not (found or settled):
            here.screen.note("nothing is unfinished")
        for outcome in settled:
            here.screen.ended(outcome)
        for handle in found:
            here.screen.began(handle.task_id, handle.tool)
        ended = await here.follower.follow(found, timeout_s)
        return max((outcome.code for outcome in (*settled, *ended)), default=codes.DONE)


def _settled(found: Resumed) -> list[Outcome]:
    """What became of calls that were under way when their process died, and are no tasks."""
    told = [outcomes.of_result(result, tool=entry.tool) for entry, result in found.results]
    for entry in found.lost:
        lost = errors.ConnectionLost("the call was cut off; nobody can say whether it ran")
        told.append(unknown(lost, tool=entry.tool))
    for entry, error in found.failures:
        if isinstance(error, InputRequired):
            told.append(waiting(error.requests, tool=entry.tool))
        else:
            told.append(unknown(error, tool=entry.tool))
    return told
