"""A witness of one log, as C2SP's tlog-witness asks it to behave, and one that misbehaves."""

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from outlast.adapters import notes
from outlast.adapters.notes import CheckpointNotary, VerifierKey
from outlast.domain import errors, merkle

OK = 200
AT = 1_800_000_000
NAME = "witness.example"


class Witness:
    """It knows the log's key, and the last tree that it has signed."""

    def __init__(self, notary: CheckpointNotary) -> None:
        self._notary = notary
        self._key = Ed25519PrivateKey.from_private_bytes(bytes([7] * 32))
        public = self._key.public_key().public_bytes_raw()
        self.verifier = VerifierKey(NAME, public, notes.COSIGNATURE)
        self.size, self.root = 0, merkle.EMPTY_ROOT
        self.requests: list[tuple[int, int]] = []
        self.answer: tuple[int, bytes] | None = None  # instead of what it would say

    def add_checkpoint(self, body: str) -> tuple[int, bytes]:
        head, _, note = body.partition("\n\n")
        first, *path = head.split("\n")
        old = int(first.removeprefix("old "))
        try:
            size, root = self._notary.read(note)
        except errors.NoteRefused:
            return 403, b""
        self.requests.append((old, size))
        if self.answer is not None:
            return self.answer
        proof = [base64.b64decode(each) for each in path]
        status, text = self._judged(old, size, root, proof)
        return status, self._cosignature(notes.opened(note)[0]) if status == OK else text

    def _judged(self, old: int, size: int, root: bytes, proof: list[bytes]) -> tuple[int, bytes]:
        if old > size:
            return 400, b""
        if old != self.size:
            return 409, f"{self.size}\n".encode()
        if size == self.size and root != self.root:
            return 409, b""
        if not merkle.extends((old, size), (self.root, root), proof):
            return 422, b""
        self.size, self.root = size, root
        return OK, b""

    def _cosignature(self, text: str) -> bytes:
        signed = self._key.sign(f"cosignature/v1\ntime {AT}\n{text}".encode())
        value = self.verifier.key_id + AT.to_bytes(8, "big") + signed
        return f"— {NAME} {base64.b64encode(value).decode()}\n".encode()


@contextmanager
def witnessing(witness: Witness) -> Iterator[str]:
    """Its URL while it is served."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, answer = 404, b""
            if self.path == "/log/add-checkpoint":
                status, answer = witness.add_checkpoint(body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/log"
        finally:
            server.shutdown()
            thread.join()
