"""Cursors: positions that a client keeps for us and can neither read nor make.

Sealed, and not only signed: the steps between two positions would tell how much other owners do.
The same position of the same owner has always the same cursor.
"""

import hashlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from ...domain import base64url

_FORM = "v1."
_LABEL = b"outlast events cursor v1\0"  # makes a key that seals nothing else
_NUMBER_BYTES = 8


class Cursors:
    """Seals positions of one log, which is named by its epoch."""

    def __init__(self, key: str, epoch: int) -> None:
        self._cipher = AESSIV(hashlib.sha512(_LABEL + key.encode()).digest())
        self._epoch = epoch.to_bytes(_NUMBER_BYTES, "big", signed=True)

    def seal(self, owner: str, position: int) -> str:
        """The cursor of this position for this owner."""
        clear = self._epoch + position.to_bytes(_NUMBER_BYTES, "big")
        sealed = self._cipher.encrypt(clear, [_bytes(owner)])
        return _FORM + base64url.encoded(sealed)

    def open(self, owner: str, text: str) -> int | None:
        """The position; None for what is forged, or of another owner, another log or another form.

        Not a word about which of these it is.
        """
        clear = self._opened(owner, text)
        if clear is None:
            return None
        position = int.from_bytes(clear[_NUMBER_BYTES:], "big")
        # Of this epoch, and in one spelling only: the last character holds bits to spare.
        return position if self.seal(owner, position) == text else None

    def _opened(self, owner: str, text: str) -> bytes | None:
        if not text.startswith(_FORM):
            return None
        body = text.removeprefix(_FORM)
        try:
            sealed = base64url.decoded(body)
            clear = self._cipher.decrypt(sealed, [_bytes(owner)])
        except (ValueError, InvalidTag):
            return None
        return clear if len(clear) == 2 * _NUMBER_BYTES else None


def _bytes(owner: str) -> bytes:
    return owner.encode("utf-8", "surrogatepass")
