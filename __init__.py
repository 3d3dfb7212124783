"""Outlast: a durable task service in front of any MCP server."""

__version__ = "0.1.0"
