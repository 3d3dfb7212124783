"""The tasks extension by its name: what a client declares, what a refusal asks it to declare."""

from collections.abc import Mapping
from typing import Any, cast

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
REQUIRED_CAPABILITIES: Mapping[str, Any] = {"extensions": {TASKS_EXTENSION: {}}}


def declares_tasks(capabilities: Mapping[str, Any]) -> bool:
    """Whether these client capabilities, of this very request, declare the extension."""
    extensions = capabilities.get("extensions")
    return isinstance(extensions, dict) and isinstance(
        cast(dict[str, Any], extensions).get(TASKS_EXTENSION), dict
    )
