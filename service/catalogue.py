"""The tools that clients see, and whether a call's arguments fit their schema."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, cast

from jsonschema import Draft202012Validator, exceptions as schema_errors
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from ..domain import errors
from ..domain.ports import Tool, Upstreams

PAGE_SIZE = 100
VALIDATORS_MAX = 1_000


class Catalogue:
    """The merged tools of all upstreams. The adapter caches; here each schema is compiled once."""

    def __init__(self, upstreams: Upstreams) -> None:
        self._upstreams = upstreams
        self._validators: dict[str, tuple[Mapping[str, Any], Validator | None]] = {}

    async def find(self, name: str) -> Tool:
        """The tool of this name. Raises InvalidCall, UpstreamUnavailable."""
        for tool in await self._upstreams.tools():
            if tool.name == name:
                return tool
        raise errors.InvalidCall(f"Unknown tool: {name}")

    async def page(self, cursor: Any) -> tuple[Sequence[Mapping[str, Any]], str | None]:
        """Definitions in the upstreams' own order, and the cursor of the next page.

        The cursor holds the last name of its page. Raises InvalidCall for one that we did not make
        and for one whose tool is gone: the client lists again from the start.
        """
        tools = await self._upstreams.tools()
        first = _place_after(cursor, [tool.name for tool in tools])
        page = tools[first : first + PAGE_SIZE]
        more = len(tools) > first + PAGE_SIZE
        return [tool.definition for tool in page], _cursor(page[-1].name) if more else None

    def accepts(self, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """True when the arguments fit `inputSchema`; False also for a schema that cannot be used.

        `$ref` is resolved within the schema only: nothing is ever fetched.
        """
        validator = self._validator(tool)
        if validator is None:
            return False
        try:
            return validator.is_valid(arguments)
        except (Unresolvable, RecursionError):
            return False

    def _validator(self, tool: Tool) -> Validator | None:
        schema = cast(dict[str, Any], tool.definition.get("inputSchema") or {})
        known = self._validators.get(tool.name)
        if known is not None and known[0] == schema:
            return known[1]
        if len(self._validators) >= VALIDATORS_MAX:
            self._validators.clear()
        compiled = _compile(schema)
        self._validators[tool.name] = (schema, compiled)
        return compiled


def _compile(schema: dict[str, Any]) -> Validator | None:
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except schema_errors.SchemaError:
        return None
    return kind(schema, registry=Registry())


def _cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _place_after(cursor: Any, names: Sequence[str]) -> int:
    if cursor is None:
        return 0
    try:
        return names.index(base64.b64decode(cursor, altchars=b"-_", validate=True).decode()) + 1
    except (TypeError, ValueError):  # not a string, not base64, not UTF-8, or no such tool
        raise errors.InvalidCall("The cursor is not valid") from None
