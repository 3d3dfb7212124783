"""What servers say of themselves: of one as it was said, and of several put together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from mcp import ClientSession

from ..domain.draft import EVENTS_EXTENSION
from ..domain.events import Json
from ..domain.extension import TASKS_EXTENSION
from ..domain.passing import Offers

# The others are no capabilities of what is passed on: tasks and events end at Outlast, and nothing
# is known of how one that no specification names would be passed on.
_PASSED_ON = ("tools", "resources", "prompts", "completions", "logging", "experimental")
_ENDING_HERE = frozenset({TASKS_EXTENSION, EVENTS_EXTENSION})


@dataclass(frozen=True)
class Facts:
    """What one server said when it was connected to, in the words of the wire."""

    capabilities: Mapping[str, Json]
    instructions: str | None
    server: Mapping[str, Json] | None


def facts_of(session: ClientSession) -> Facts:
    """What was said in this session's handshake or discovery."""
    return Facts(
        _wire(session.server_capabilities) or {}, session.instructions, _wire(session.server_info)
    )


def offers_tasks(facts: Facts) -> bool:
    """Whether this server may answer a call with a task of its own."""
    extensions = facts.capabilities.get("extensions")
    return isinstance(extensions, dict) and TASKS_EXTENSION in extensions


def offers_of(known: Mapping[str, Facts | None], unavailable: Sequence[str]) -> Offers:
    """What these upstreams, of which None is known if they never answered, offer together."""
    facts = {name: told for name, told in known.items() if told is not None}
    capabilities: dict[str, Json] = {}
    for told in facts.values():
        capabilities = _merged(capabilities, _passed_on(told.capabilities))
    return Offers(
        capabilities=capabilities,
        instructions=_instructions(facts, alone=len(known) == 1),
        servers={name: told.server for name, told in facts.items() if told.server is not None},
        unavailable=tuple(unavailable),
    )


def _passed_on(capabilities: Mapping[str, Json]) -> dict[str, Json]:
    kept = {key: capabilities[key] for key in _PASSED_ON if key in capabilities}
    extensions = {
        key: value
        for key, value in cast(dict[str, Json], capabilities.get("extensions") or {}).items()
        if key not in _ENDING_HERE
    }
    return {**kept, "extensions": extensions} if extensions else kept


def _merged(one: Mapping[str, Json], other: Mapping[str, Json]) -> dict[str, Json]:
    """What is in either; where both have something to say, yes before no, else the first."""
    merged = {**other, **one}
    for key in one.keys() & other.keys():
        mine, theirs = one[key], other[key]
        if isinstance(mine, dict) and isinstance(theirs, dict):
            merged[key] = _merged(cast(Mapping[str, Json], mine), cast(Mapping[str, Json], theirs))
        elif isinstance(mine, bool) and isinstance(theirs, bool):
            merged[key] = mine or theirs
    return merged


def _instructions(facts: Mapping[str, Facts], *, alone: bool) -> str | None:
    given = {name: told.instructions for name, told in facts.items() if told.instructions}
    if alone:
        return next(iter(given.values()), None)
    return "\n\n".join(f"## {name}\n\n{text}" for name, text in given.items()) or None


def _wire(model: Any) -> dict[str, Json] | None:
    return (
        None if model is None else model.model_dump(by_alias=True, mode="json", exclude_none=True)
    )
