"""The tools that clients see, and whether a call's arguments fit their schema."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema import exceptions as schema_errors
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from jsonschema import Draft202012Validator
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
        """Definitions in the order of their names, and the cursor of the next page.

        The cursor holds the last name, so a page neither repeats nor skips what stays in the list.
        Raises InvalidCall for a cursor that we did not make.
        """
        after = _after(cursor)
        tools = sorted(await self._upstreams.tools(), key=lambda tool: tool.name)
        rest = [tool for tool in tools if tool.name > after]
        page = rest[:PAGE_SIZE]
        more = len(rest) > PAGE_SIZE
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
        schema = tool.definition.get("inputSchema") or {}
        known = self._validators.get(tool.name)
        if known is not None and known[0] == schema:
            return known[1]
        if len(self._validators) >= VALIDATORS_MAX:
            self._validators.clear()
        compiled = _compile(schema)
        self._validators[tool.name] = (schema, compiled)
        return compiled


def _compile(schema: Mapping[str, Any]) -> Validator | None:
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except schema_errors.SchemaError:
        return None
    return kind(schema, registry=Registry())


def _cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _after(cursor: Any) -> str:
    if cursor is None:
        return ""
    try:
        return base64.b64decode(cursor, altchars=b"-_", validate=True).decode()
    except (TypeError, ValueError, binascii.Error):
        raise errors.InvalidCall("The cursor is not valid") from None
