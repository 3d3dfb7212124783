"""A server that tells what it was sent: the HTTP headers of the call, and its own environment."""

import json
import os

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from serving import run

server = MCPServer("echoing", log_level="WARNING")


@server.tool()
def sent(ctx: Context) -> str:
    """Tell all headers and all of the environment."""
    return json.dumps({"headers": dict(ctx.headers or {}), "environment": dict(os.environ)})


if __name__ == "__main__":
    run(server)
