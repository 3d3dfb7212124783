"""`outlast answer`: what a task asks is answered, by words, by JSON or by whoever is there."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from ....domain import errors
from ... import forms
from . import arguments, codes, following, options, outcomes
from .following import Handle
from .interrupts import Interrupted
from .options import JournalOption, JsonOption, ServerOption, TaskId, TokenOption
from .outcomes import Outcome, Requests
from .reach import SERVER, Reach, reach
from .session import Session, session

EXAMPLES = options.examples(
    "outlast answer TASK_ID",
    "outlast answer TASK_ID approve=yes note='looks good'",
    "outlast answer TASK_ID --question in-2 --decline",
    "outlast answer TASK_ID --responses @responses.json",
)

Responses = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Said:
    """What the command line answers."""

    words: Sequence[str]
    question: str | None
    action: str | None
    responses: str | None

    @property
    def is_silent(self) -> bool:
        """True when the command line answers nothing."""
        return not (self.words or self.action or self.responses)


def answer(  # noqa: PLR0913, PLR0917 - one option a parameter is how typer reads them
    task_id: TaskId,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIELD=VALUE...",
            help="The form, filled in. Without any the terminal is asked.",
            show_default=False,
        ),
    ] = None,
    question: Annotated[
        str | None, typer.Option("--question", help="Its key, where the task asks several.")
    ] = None,
    accept: Annotated[bool, typer.Option("--accept", help="Agree, as to visiting a URL.")] = False,
    decline: Annotated[bool, typer.Option("--decline", help="Say no.")] = False,
    dismiss: Annotated[bool, typer.Option("--dismiss", help="Do not say.")] = False,
    responses: Annotated[
        str | None,
        typer.Option("--responses", help="All responses by key, as JSON or @FILE, sent as given."),
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = SERVER,
    token: TokenOption = None,
    journal: JournalOption = None,
) -> None:
    """Answer what a task asks, and leave."""
    actions = {"accept": accept, "decline": decline, "cancel": dismiss}
    chosen = [action for action, is_chosen in actions.items() if is_chosen]
    is_clear = len(chosen) + bool(words and chosen != ["accept"]) + bool(responses) <= 1
    if not is_clear:
        raise errors.ConfigurationError(
            "give FIELD=VALUE, --decline, --dismiss or --responses, not two of them"
        )
    said = Said(words or [], question, chosen[0] if chosen else None, responses)
    at = reach(server, token, journal)
    raise options.run(_answer(at, task_id, said, as_json=as_json))


async def _answer(at: Reach, task_id: str, said: Said, *, as_json: bool) -> int:
    async with session(at, as_json=as_json) as here:
        handle = here.client.task(task_id)
        try:
            outcome = await here.interrupts.breaking(partial(_answered, here, handle, said))
        except Interrupted:
            outcome = Outcome("left_running", codes.LEFT_RUNNING, task_id, handle.tool)
        except errors.ConfigurationError:
            raise
        except errors.OutlastError as error:
            outcome = following.unknown(error, task_id, handle.tool)
        here.screen.ended(outcome)
        return outcome.code


async def _answered(here: Session, handle: Handle, said: Said) -> Outcome:
    asked = await _questions(handle)
    if not asked:
        raise errors.ConfigurationError("the task asks nothing now")
    if said.is_silent:
        responses = {
            key: await here.asker(request)
            for key, request in asked.items()
            if here.asker.can_answer(request)
        }
    else:
        responses = _responses(said, asked)
    if not responses:
        return following.waiting(asked, handle.task_id, handle.tool)
    await handle.answer(responses)
    told = {"keys": list(responses)}
    return Outcome("answered", codes.DONE, handle.task_id, handle.tool, told)


async def _questions(handle: Handle) -> Requests:
    """What the task waits for at this moment."""
    async with aclosing(handle.updates()) as states:
        async for state in states:
            return outcomes.questions(state.task)
    return {}


def _responses(said: Said, asked: Requests) -> Responses:
    """The words of the command line as responses. Raises ConfigurationError."""
    if said.responses is not None:
        return arguments.json_object(said.responses, "--responses")
    key = _key(said.question, asked)
    if said.action in ("decline", "cancel"):
        return {key: {"action": said.action}}
    params = outcomes.mapping(asked[key].get("params"))
    if params.get("mode") == "url":
        return {key: {"action": "accept"}}
    fields = forms.fields_of(outcomes.mapping(params.get("requestedSchema")))
    try:
        content = forms.content_of(fields, _texts(said.words, fields))
    except forms.Unfit as error:
        raise errors.ConfigurationError(str(error)) from None
    return {key: {"action": "accept", "content": content}}


def _texts(words: Sequence[str], fields: Sequence[forms.Field]) -> dict[str, str]:
    """The words by name. Only a field of several choices may be given in turns."""
    several = {field.name for field in fields if field.kind is forms.Kind.SOME_OF}
    texts: dict[str, str] = {}
    for name, text in arguments.pairs_of(words):
        if name in texts and name not in several:
            raise errors.ConfigurationError(f"{name} is given twice, and takes one value")
        texts[name] = f"{texts[name]},{text}" if name in texts else text
    return texts


def _key(wanted: str | None, asked: Requests) -> str:
    if wanted is None and len(asked) == 1:
        return next(iter(asked))
    if wanted is not None and wanted in asked:
        return wanted
    raise errors.ConfigurationError(f"give --question, one of: {', '.join(asked)}")
