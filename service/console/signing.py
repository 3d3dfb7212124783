"""What is handed to a browser and comes back: sealed, for one purpose and until a time."""

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ...domain import base64url

NONCE_BYTES = 12
SEALED_CHARS_MAX = 4096  # what browsers keep of one cookie


class Seal:
    """Seals statements under one key. What was sealed for one purpose opens for no other."""

    def __init__(self, key: str, clock: Callable[[], float] = time.time) -> None:
        self._cipher = AESGCM(hashlib.sha256(f"console\0{key}".encode()).digest())
        self._clock = clock

    def seal(self, purpose: str, said: Mapping[str, Any], until: float) -> str:
        """The statement, unreadable and unchangeable, in letters that a cookie may have."""
        nonce = os.urandom(NONCE_BYTES)
        body = orjson.dumps({"said": dict(said), "until": until})
        sealed = self._cipher.encrypt(nonce, body, purpose.encode())
        return base64url.encoded(nonce + sealed)

    def open(self, purpose: str, given: str | None) -> Mapping[str, Any] | None:
        """The statement; None for what is not ours, for another purpose, or out of time."""
        if not given or len(given) > SEALED_CHARS_MAX:
            return None
        try:
            raw = base64url.decoded(given)
            body = self._cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], purpose.encode())
        except (InvalidTag, ValueError):
            return None
        found = cast(Mapping[str, Any], orjson.loads(body))
        return found["said"] if self._clock() < found["until"] else None
