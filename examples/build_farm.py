"""A small build farm that has never heard of MCP: HTTP in, signed callbacks out, standard library.

    python examples/build_farm.py --port 8200

    POST /jobs  {"project": "/path/to/a/folder", "callback": {"url": …, "secret": "whsec_…"}}
    202         {"job": "3f9c…"}

A job copies a Python project, compiles it, runs its tests and packs it. It posts how far it is, and
in the end the result, to the callback's URL, signed as Standard Webhooks say. Jobs live in this
process alone: one that dies with it never calls back.
"""

import argparse
import base64
import hashlib
import hmac
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

POST_S_MAX = 30.0
TELL_S_MAX = 600.0  # an outcome that nobody takes for so long is thrown away
PAUSE_S_MAX = 30.0
STEP_S_MAX = 600.0
BODY_BYTES_MAX = 64 * 1024
OUTPUT_TAIL_CHARS = 4_000
NOT_BUILT = -32000
DROPPED = frozenset({404, 409, 410})  # whoever waited does so no more
NO_ANSWER = 0
LATER = frozenset({NO_ANSWER, 408, 425, 429, 500, 502, 503, 504})  # worth another try
NO_TESTS = 5  # what unittest of Python 3.12 and newer exits with when it finds none


class NotWanted(Exception):
    """Nobody waits for this job any more."""


class Broken(Exception):
    """A step of the build failed."""


class Caller:
    """Whoever wants to be told: a URL and a secret."""

    def __init__(self, job: str, callback: Mapping[str, str]) -> None:
        self._job, self._url, self._told = job, callback["url"], 0
        if not self._url.startswith(("http://", "https://")):
            raise ValueError(self._url)
        self._key = base64.b64decode(callback["secret"].removeprefix("whsec_"))

    def progress(self, step: int, of: int, message: str) -> None:
        """Said once: if it is not heard, the next one will be."""
        body = {"type": "progress", "progress": step, "total": of, "message": message}
        self._judge(self._post(self._next_id(), body))

    def outcome(self, body: Mapping[str, Any]) -> None:
        """Said until it is heard, under one id, so that it counts once however often it arrives."""
        webhook_id, pause_s, end = self._next_id(), 1.0, time.monotonic() + TELL_S_MAX
        while time.monotonic() < end:
            status = self._post(webhook_id, body)
            self._judge(status)
            if status not in LATER:
                return
            threading.Event().wait(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _post(self, webhook_id: str, body: Mapping[str, Any]) -> int:
        """Sign and send; the answer's status, or 0 for none."""
        text, now = json.dumps(body).encode(), str(int(time.time()))
        signed = hmac.digest(self._key, f"{webhook_id}.{now}.".encode() + text, "sha256")
        headers = {
            "Content-Type": "application/json",
            "webhook-id": webhook_id,
            "webhook-timestamp": now,
            "webhook-signature": "v1," + base64.b64encode(signed).decode(),
        }
        # The URL is the caller's own, and this farm is for callers that it trusts.
        request = urllib.request.Request(self._url, text, headers)  # noqa: S310 - see above
        try:
            with urllib.request.urlopen(request, timeout=POST_S_MAX) as answer:  # noqa: S310 - as above
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            with refused:
                sys.stderr.write(f"{self._job}: {refused.code} {refused.read(500)!r}\n")
                return refused.code
        except OSError as error:
            sys.stderr.write(f"{self._job}: {error}\n")
            return NO_ANSWER

    def _judge(self, status: int) -> None:
        if status in DROPPED:
            raise NotWanted

    def _next_id(self) -> str:
        self._told += 1
        return f"{self._job}_{self._told}"


def run(project: str, caller: Caller) -> None:
    """Run one job to its end, and tell the caller."""
    try:
        caller.outcome(_outcome(project, caller))
    except NotWanted:
        return


def _outcome(project: str, caller: Caller) -> dict[str, Any]:
    try:
        with tempfile.TemporaryDirectory(prefix="build-farm-") as folder:
            report = _build(Path(project), Path(folder), caller)
    except Broken as broken:
        report = {"project": project, "outcome": "broken"}
        return _completed(str(broken), report, failed=True)
    except (OSError, subprocess.SubprocessError) as error:
        why = {"code": NOT_BUILT, "message": f"The farm could not build {project}: {error}"}
        return {"type": "failed", "error": why}
    return _completed(f"{project}: {report['size_bytes']} bytes", report)


def _build(project: Path, folder: Path, caller: Caller) -> dict[str, Any]:
    tree = folder / "tree"
    caller.progress(0, 4, "fetching")
    shutil.copytree(project, tree)
    for number, (name, command) in enumerate(_steps(), start=1):
        caller.progress(number, 4, name)
        ran = subprocess.run(
            [sys.executable, *command],
            cwd=tree,
            check=False,
            timeout=STEP_S_MAX,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if ran.returncode not in (0, NO_TESTS):
            raise Broken(f"{name} failed:\n{ran.stdout[-OUTPUT_TAIL_CHARS:]}")
    caller.progress(3, 4, "packing")
    packed = Path(shutil.make_archive(str(folder / "package"), "zip", tree)).read_bytes()
    digest = hashlib.sha256(packed).hexdigest()
    name = str(project)
    return {"project": name, "outcome": "built", "size_bytes": len(packed), "sha256": digest}


def _steps() -> Iterator[tuple[str, list[str]]]:
    yield "compiling", ["-m", "compileall", "-q", "."]
    yield "testing", ["-m", "unittest", "discover"]


def _completed(text: str, report: Mapping[str, Any], *, failed: bool = False) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    result = {"content": content, "structuredContent": dict(report), "isError": failed}
    return {"type": "completed", "result": result}


class Farm(BaseHTTPRequestHandler):
    """The farm's door."""

    timeout = POST_S_MAX

    def do_POST(self) -> None:
        """Take a job, and answer before it runs."""
        try:
            wanted = json.loads(self.rfile.read(self._length()))
            job = secrets.token_hex(8)
            caller = Caller(job, wanted["callback"])
            work = threading.Thread(target=run, args=(str(wanted["project"]), caller))
        except (KeyError, TypeError, ValueError):
            return self._answer(400, {"error": "a job has a project and a callback"})
        work.daemon = True
        work.start()
        return self._answer(202, {"job": job})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Nothing: a farm is asked often."""

    def _length(self) -> int:
        length = int(self.headers.get("Content-Length", ""))
        if self.path != "/jobs" or not 0 < length <= BODY_BYTES_MAX:
            raise ValueError(length)
        return length

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def main() -> None:
    """Serve on loopback until told to stop."""
    parser = argparse.ArgumentParser(description="A build farm")
    parser.add_argument("--port", type=int, default=8200)
    port: int = parser.parse_args().port
    ThreadingHTTPServer(("127.0.0.1", port), Farm).serve_forever()


if __name__ == "__main__":
    main()
