"""Outlast: a durable task service in front of any MCP server."""

from .service.client import TaskClient

__all__ = ["TaskClient", "__version__"]

__version__ = "0.1.0"
