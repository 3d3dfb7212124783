"""Outlast: a durable task service in front of any MCP server."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .service.client import TaskClient

__all__ = ["TaskClient", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`TaskClient`, once it is asked for: the service itself does without it."""
    if name == "TaskClient":
        from .service.client import TaskClient

        return TaskClient
    raise AttributeError(f"outlast has no {name!r}")
