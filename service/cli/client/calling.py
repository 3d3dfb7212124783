"""`outlast call`: a tool is called; what comes is its result, or a task that is followed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import anyio
import typer

from ....domain import clienting, errors
from . import arguments, codes, completion, following, options, outcomes, tools
from .interrupts import Interrupted
from .options import (
    JournalOption,
    JsonOption,
    ServerOption,
    TimeoutOption,
    TokenOption,
    ViaOption,
    WebhookListenOption,
    WebhookUrlOption,
)
from .outcomes import Outcome
from .reach import SERVER, Reach, reach
from .session import Session, session

EXAMPLES = options.examples(
    "outlast call wait seconds=3",
    "outlast call run_ci_pipeline repository=. branch=main --timeout 10m",
    "outlast call run_ci_pipeline --arguments @call.json --json",
    "task=$(outlast call wait seconds=600 --detach)",
)


@dataclass(frozen=True)
class Wish:
    """What is to be called, and how."""

    tool: str
    words: Sequence[str]
    given: str | None
    key: str | None
    timeout_s: float | None
    is_detached: bool


def call(  # noqa: PLR0913, PLR0917 - one option a parameter is how typer reads them
    tool: Annotated[
        str,
        typer.Argument(
            metavar="TOOL", help="The tool's name.", autocompletion=completion.tool_names
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE...",
            help="Arguments, by the types of the tool's schema; KEY:=VALUE is JSON.",
            show_default=False,
        ),
    ] = None,
    given: Annotated[
        str | None,
        typer.Option("--arguments", help="Arguments as JSON, or @FILE. KEY=VALUE wins over it."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: one call, however often sent.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the task's id, and leave it running.")
    ] = False,
    timeout: TimeoutOption = None,
    via: ViaOption = "auto",
    webhook_url: WebhookUrlOption = None,
    webhook_listen: WebhookListenOption = options.LISTEN,
    as_json: JsonOption = False,
    server: ServerOption = SERVER,
    token: TokenOption = None,
    journal: JournalOption = None,
) -> None:
    """Call a tool, follow its task, answer what it asks, and print the result."""
    wish = Wish(tool, words or [], given, key, options.seconds(timeout), detach)
    hook = options.webhook(webhook_url, webhook_listen)
    at = replace(reach(server, token, journal, via), webhook=hook)
    raise options.run(_call(at, wish, as_json=as_json))


async def _call(at: Reach, wish: Wish, *, as_json: bool) -> int:
    ends_at = None if wish.timeout_s is None else anyio.current_time() + wish.timeout_s
    try:
        with anyio.fail_after(_left_s(ends_at)):
            sent = await _arguments(at, wish)
    except TimeoutError:
        # Not "left running": there is nothing that could run.
        late = "the server did not say in time what the tool takes; nothing was called"
        raise errors.ConnectionLost(late) from None
    async with session(at, as_json=as_json) as here:
        got = await _answered(here, wish, sent, _left_s(ends_at))
        if isinstance(got, Outcome):
            here.screen.ended(got)
            return got.code
        if wish.is_detached:
            here.screen.detached(got.task_id)
            return codes.DONE
        here.screen.began(got.task_id, wish.tool)
        [outcome] = await here.follower.follow([got], _left_s(ends_at))
        return outcome.code


def _left_s(ends_at: float | None) -> float | None:
    return None if ends_at is None else max(0.0, ends_at - anyio.current_time())


async def _answered(
    here: Session, wish: Wish, sent: dict[str, Any], left_s: float | None
) -> following.Handle | Outcome:
    """What came of the call itself."""
    asks = here.asker.terminal is not None
    calling = partial(here.client.call_tool, wish.tool, sent, wish.key, ask=asks)
    try:
        with anyio.fail_after(left_s):
            got = await here.interrupts.breaking(calling)
    except (TimeoutError, Interrupted):
        here.screen.note("no answer yet; if it became a task, `outlast resume` finds it")
        return Outcome("left_running", codes.LEFT_RUNNING, tool=wish.tool)
    except clienting.InputRequired as error:
        return following.waiting(error.requests, tool=wish.tool)
    except errors.OutlastError as error:
        return following.unknown(error, tool=wish.tool)
    return outcomes.of_result(got, tool=wish.tool) if isinstance(got, dict) else got


async def _arguments(at: Reach, wish: Wish) -> dict[str, Any]:
    """What to send. The tool's schema is read only where words have to be understood by it."""
    given = {} if wish.given is None else arguments.json_object(wish.given, "--arguments")
    if wish.given is not None and not wish.words:
        return given
    pairs = arguments.pairs_of(wish.words)
    tool = tools.named(await tools.listed(at.server, at.token), wish.tool)
    schema = outcomes.mapping(tool.get("inputSchema"))
    sent = {**given, **arguments.typed(pairs, schema)}
    if lacking := arguments.missing(sent, schema):
        usage = arguments.usage(wish.tool, schema)
        raise errors.ConfigurationError(f"{', '.join(lacking)} is missing: {usage}")
    return sent
