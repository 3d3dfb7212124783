"""Secrets at rest: sealed under a key that is not stored beside them."""

import contextlib
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ...domain import errors

_KEY_BYTES = 64


class Vault:
    """Seals each secret to its subscription.

    The same secret of the same subscription seals to the same bytes (AES-SIV, RFC 5297): a refresh
    that brings no new one is told from a rotation without opening anything.
    """

    def __init__(self, key: str) -> None:
        derived = HKDF(SHA512(), _KEY_BYTES, None, b"outlast webhook secrets")
        self._cipher = AESSIV(derived.derive(key.encode()))

    def seal(self, secret: bytes, subscription_id: str) -> bytes:
        """What may be stored."""
        return self._cipher.encrypt(secret, [subscription_id.encode()])

    def open_all(self, sealed: Sequence[bytes], subscription_id: str) -> list[bytes]:
        """The present secret and, while it can be opened, the former one behind it.

        A client that subscribed anew after a change of the key has left a former one that cannot.
        """
        present, *former = sealed
        secrets = [self.open(present, subscription_id)]
        for each in former:
            with contextlib.suppress(errors.ConfigurationError):
                secrets.append(self.open(each, subscription_id))
        return secrets

    def open(self, sealed: bytes, subscription_id: str) -> bytes:
        """The secret. Raises ConfigurationError when it was sealed under another key."""
        try:
            return self._cipher.decrypt(sealed, [subscription_id.encode()])
        except InvalidTag:
            raise errors.ConfigurationError(
                "A webhook secret was sealed under another secret_key; set the former one again,"
                " or let its client subscribe anew"
            ) from None
