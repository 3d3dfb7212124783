"""A server in plain lines that keeps the framing and breaks what is within: `odd_server.py`.

With `--mute FILE` it is connected to, says that it has tools, and lists them only once there is no
such file: until then it answers nothing.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

VERSION = "2026-07-28"
LARGE = 2**70
BEYOND = "1e400"  # a number by the grammar of JSON, and of no double
TOOLS = (
    *("vast", "vast_now", "large", "large_now", "large_log"),
    *("unhinted", "unmarked", "unmarked_task"),
)
DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": [VERSION],
    "capabilities": {"tools": {}, "logging": {}},
    "ttlMs": 0,
    "cacheScope": "private",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "odd", "version": "1"}},
}


def say(**members: Any) -> None:
    """Write one message. What is to be beyond a double cannot be held: it is named until here."""
    line = json.dumps({"jsonrpc": "2.0", **members}).replace('"BEYOND"', BEYOND)
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def tools() -> list[dict[str, Any]]:
    hints = {"unhinted": {"annotations": "yes"}}
    schema = {"type": "object"}
    return [{"name": name, "inputSchema": schema, **hints.get(name, {})} for name in TOOLS]


def called(name: str) -> dict[str, Any]:
    result: dict[str, Any] = {"resultType": "complete", "content": [{"type": "text", "text": name}]}
    if name.startswith("vast"):
        result["structuredContent"] = {"beyond": ["BEYOND", 1.5], "large": LARGE}
    elif name in ("large", "large_now"):
        result["structuredContent"] = {"large": LARGE, "small": 1}
    elif name == "large_log":
        params = {"level": "error", "data": {"large": LARGE}}
        say(method="notifications/message", params=params)
    elif name.startswith("unmarked"):
        result["_meta"] = "x"
    return result


for read in sys.stdin:
    message = json.loads(read)
    match message.get("method"):
        case "server/discover":
            say(id=message["id"], result=DISCOVERED)
        case "tools/list":
            while "--mute" in sys.argv and Path(sys.argv[-1]).exists():
                time.sleep(0.02)
            listed = {"resultType": "complete", "tools": tools(), "ttlMs": 60_000}
            say(id=message["id"], result=listed)
        case "tools/call":
            say(id=message["id"], result=called(message["params"]["name"]))
        case method if "id" in message:
            say(id=message["id"], error={"code": -32601, "message": f"no {method}"})
        case _:
            pass
