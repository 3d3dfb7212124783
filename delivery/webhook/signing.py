"""Standard Webhooks signatures: `v1` (HMAC-SHA256, a shared secret) and `v1a` (ed25519, a server).

Signed is `id.timestamp.body`, the body as the raw bytes sent. What is sent, and when, is not here.
"""

import base64
import hashlib
import hmac
import itertools
import math
import re
import secrets as chance
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ...domain import base64url, errors

ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"
SUBSCRIPTION_HEADER = "X-MCP-Subscription-Id"

SECRET_BYTES_MIN = 24
SECRET_BYTES_MAX = 64
TOLERANCE_S = 300.0
SIGNATURES_MAX = 32  # of one header; what stands behind them is not looked at

_SEED_BYTES = 32
_ED25519_BYTES = 64
_SECRET = re.compile(r"whsec_(.+)", re.DOTALL)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
# An id that we sign holds no dot. One that we verify may, for other servers write such ids; a brace
# it may never hold: with it, a part of some body could pass as the id of another message.
_ID_SIGNED = re.compile(r"[A-Za-z0-9_-]{1,128}")
_ID_VERIFIED = re.compile(r"[!-z|~]{1,256}")
_TIMESTAMP = re.compile(r"[0-9]{1,12}")
# Entries stand between spaces or commas, whichever a proxy made of repeated headers.
_ENTRY = re.compile(r"(?<![^\s,])(v1a?),(?=([A-Za-z0-9+/_-]+={0,2})(?![^\s,]))")


class Refusal(StrEnum):
    """Why a message was not accepted."""

    MALFORMED = "malformed"
    STALE = "stale"
    FORGED = "forged"


class SignatureRefused(errors.OutlastError):
    """The message carries no valid signature."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__()
        self.reason = reason


def new_secret() -> str:
    """A fresh secret, as a client sends it in `delivery.secret`."""
    return spell_secret(chance.token_bytes(_SEED_BYTES))


def spell_secret(secret: bytes) -> str:
    """The text of a secret: standard alphabet, padded."""
    return "whsec_" + base64.b64encode(secret).decode()


def parse_secret(text: object) -> bytes:
    """The key in a `whsec_` text, in any spelling of base64. Raises InvalidCall."""
    found = _SECRET.fullmatch(text) if isinstance(text, str) else None
    secret = _decoded(found[1]) if found else None
    if secret is None or not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise errors.InvalidCall(
            "The secret must be whsec_ and then base64 of"
            f" {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes"
        )
    return secret


def sign(secrets: Sequence[bytes], webhook_id: str, timestamp: int, body: bytes) -> str:
    """The signature header's value, one `v1` entry a secret; two while a secret is replaced."""
    if not secrets:
        raise ValueError("a message needs at least one secret")
    content = _content(_own_id(webhook_id), str(timestamp), body)
    return " ".join("v1," + base64.b64encode(_mac(each, content)).decode() for each in secrets)


def verify(
    secrets: Sequence[bytes],
    headers: Mapping[str, str],
    body: bytes,
    now: datetime,
    tolerance_s: float = TOLERANCE_S,
) -> None:
    """Return if some `v1` entry is of some of the secrets; none fits an empty list.

    Header names may be in any case. Raises SignatureRefused: MALFORMED without a readable id,
    timestamp or signature header, STALE outside the tolerance in the past or in the future, FORGED
    when no entry fits.
    """
    content, entries = _opened(headers, body, now, tolerance_s)
    wanted = [_mac(secret, content) for secret in secrets]
    found = list(itertools.islice(_signatures(entries, "v1"), SIGNATURES_MAX))
    # Every pair is compared: the time it takes does not tell which one fitted.
    fits = [hmac.compare_digest(one, other) for one in wanted for other in found]
    if not any(fits):
        raise SignatureRefused(Refusal.FORGED)


@dataclass(frozen=True)
class PublicKey:
    """What proves a server's `v1a` signatures; learnt from the server's own origin, never from a
    delivery."""

    raw: bytes

    @classmethod
    def parse(cls, text: str) -> "PublicKey":
        """The key in a `whpk_` text. Raises ConfigurationError."""
        raw = _decoded(text.removeprefix("whpk_")) if text.startswith("whpk_") else None
        if raw is None or len(raw) != _SEED_BYTES:
            raise errors.ConfigurationError(
                "A public webhook key must be whpk_ and then base64 of 32 bytes"
            )
        return cls(raw)

    def __str__(self) -> str:
        return "whpk_" + base64.b64encode(self.raw).decode()

    @property
    def kid(self) -> str:
        """The key's name: its RFC 7638 thumbprint."""
        members = f'{{"crv":"Ed25519","kty":"OKP","x":"{base64url.encoded(self.raw)}"}}'
        return base64url.encoded(hashlib.sha256(members.encode()).digest())

    def has_signed(self, content: bytes, signature: bytes) -> bool:
        """Whether the signature over this content is of this key's owner."""
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, content)
        except InvalidSignature:
            return False
        return True


class ServerKey:
    """The private half: says which server sent a delivery. Its text never shows up in a repr."""

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = PublicKey(self._key.public_key().public_bytes_raw())

    @classmethod
    def parse(cls, text: str) -> "ServerKey":
        """The key in a `whsk_` text: the seed, or the seed and its public key.

        Raises ConfigurationError.
        """
        raw = _decoded(text.removeprefix("whsk_")) if text.startswith("whsk_") else None
        if raw is not None and len(raw) in {_SEED_BYTES, _ED25519_BYTES}:
            key = cls(raw[:_SEED_BYTES])
            if raw[_SEED_BYTES:] in {b"", key.public.raw}:
                return key
        raise errors.ConfigurationError(
            "A webhook signing key must be whsk_ and then base64 of 32 or 64 bytes"
        )

    def sign(self, webhook_id: str, timestamp: int, body: bytes) -> str:
        """One `v1a` entry, to stand behind the `v1` entries after a space."""
        content = _content(_own_id(webhook_id), str(timestamp), body)
        return "v1a," + base64.b64encode(self._key.sign(content)).decode()


def verify_server(
    keys: Sequence[PublicKey],
    headers: Mapping[str, str],
    body: bytes,
    now: datetime,
    tolerance_s: float = TOLERANCE_S,
) -> None:
    """Return if some `v1a` entry is of some of the keys. Raises SignatureRefused as `verify`."""
    content, entries = _opened(headers, body, now, tolerance_s)
    found = itertools.islice(_signatures(entries, "v1a"), SIGNATURES_MAX)
    if not any(key.has_signed(content, each) for each in found for key in keys):
        raise SignatureRefused(Refusal.FORGED)


def public_keys(keys: Sequence[ServerKey]) -> dict[str, Any]:
    """A JWK set for a well-known path: in a rotation the old key stands beside the new."""
    return {"keys": [_jwk(key.public) for key in keys]}


def _jwk(key: PublicKey) -> dict[str, str]:
    kind = {"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig"}
    return {**kind, "kid": key.kid, "x": base64url.encoded(key.raw)}


def _opened(
    headers: Mapping[str, str], body: bytes, now: datetime, tolerance_s: float
) -> tuple[bytes, str]:
    """The signed content, and the header with the signatures over it."""
    if not (math.isfinite(tolerance_s) and tolerance_s >= 0):
        raise ValueError("the tolerance must be a number of seconds, 0 or more")
    given = {name.lower(): value for name, value in headers.items()}
    webhook_id, timestamp = given.get(ID_HEADER, ""), given.get(TIMESTAMP_HEADER, "")
    entries = given.get(SIGNATURE_HEADER, "")
    if not (entries and _ID_VERIFIED.fullmatch(webhook_id) and _TIMESTAMP.fullmatch(timestamp)):
        raise SignatureRefused(Refusal.MALFORMED)
    if abs(now.timestamp() - int(timestamp)) > tolerance_s:
        raise SignatureRefused(Refusal.STALE)
    return _content(webhook_id, timestamp, body), entries


def _signatures(entries: str, version: str) -> Iterator[bytes]:
    for found, text in _ENTRY.findall(entries):
        signature = _decoded(text) if found == version else None
        if signature is not None:
            yield signature


def _own_id(webhook_id: str) -> str:
    if not _ID_SIGNED.fullmatch(webhook_id):
        raise ValueError("a webhook-id of ours is 1 to 128 letters, digits, dashes or underscores")
    return webhook_id


def _content(webhook_id: str, timestamp: str, body: bytes) -> bytes:
    return f"{webhook_id}.{timestamp}.".encode() + body


def _mac(secret: bytes, content: bytes) -> bytes:
    # An empty or short key would let anybody sign.
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise ValueError("a secret has 24 to 64 bytes")
    return hmac.digest(secret, content, "sha256")


def _decoded(text: str) -> bytes | None:
    """Base64 in either alphabet, padded or not; None for what is none."""
    if not _BASE64.fullmatch(text):
        return None
    try:
        return base64url.decoded(text.rstrip("=").replace("+", "-").replace("/", "_"))
    except ValueError:
        return None
