"""An older server that may be slow to start, in plain lines: `late_server.py FOLDER`.

It waits for as long as there is a file FOLDER/hold, and notes what it hears in FOLDER/heard.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
INITIALIZED = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "late", "version": "1"},
}
RESULTS: dict[str, Any] = {
    "initialize": INITIALIZED,
    "tools/list": {"tools": [{"name": "work", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": []},
}


def note(line: str) -> None:
    with (FOLDER / "heard").open("a") as heard:
        heard.write(f"{line}\n")


note("started")
while (FOLDER / "hold").exists():
    time.sleep(0.02)
for line in sys.stdin:
    message = json.loads(line)
    note(message["method"])
    if "id" in message:
        answer = {"result": RESULTS.get(message["method"], {})}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
        sys.stdout.flush()
