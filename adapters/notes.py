"""Checkpoints as signed notes: C2SP signed-note, tlog-checkpoint and tlog-cosignature.

A note is a text, an empty line, and lines of signatures. Each names its key and begins with four
bytes of the key's id, so that a note may bear signatures of keys that one does not know.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..domain import base64url, errors, merkle
from ..domain.audit import Signed

SEED_SIZE = 32
KEY_ID_SIZE = 4
TIME_SIZE = 8
ED25519 = b"\x01"
COSIGNATURE = b"\x04"  # Ed25519 over the note and a time
NOTE_SIZE_MAX = 64 * 1024
SIGNATURES_MAX = 100  # what a note may bear; the rest would only cost time

_DASH = "\N{EM DASH} "
_NAME = re.compile(r"[^\s+\x00-\x1f\x7f]+")
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")


class Signature(NamedTuple):
    """One line of signature: the name of its key, the key's id, and the rest."""

    name: str
    key_id: bytes
    value: bytes


@dataclass(frozen=True)
class VerifierKey:
    """Who may have signed: a name, and a public key of one of the two kinds."""

    name: str
    public: bytes
    kind: bytes = ED25519

    @classmethod
    def parse(cls, text: str) -> "VerifierKey":
        """Read `name+id+key`. Raises ConfigurationError."""
        name, _, rest = text.strip().partition("+")
        key_id, _, encoded = rest.partition("+")
        key = _decoded(encoded)
        if key is None or len(key) != 1 + SEED_SIZE or key[:1] not in {ED25519, COSIGNATURE}:
            raise errors.ConfigurationError("a verifier key is name+id+key, of an Ed25519 key")
        found = cls(name, key[1:], key[:1])
        if not _NAME.fullmatch(name) or found.key_id.hex() != key_id:
            raise errors.ConfigurationError(f"the verifier key of {name!r} does not match its id")
        return found

    @property
    def key_id(self) -> bytes:
        """Four bytes that tell this key from others of the same name."""
        told = self.name.encode() + b"\n" + self.kind + self.public
        return hashlib.sha256(told).digest()[:KEY_ID_SIZE]

    def __str__(self) -> str:
        encoded = base64.b64encode(self.kind + self.public).decode()
        return f"{self.name}+{self.key_id.hex()}+{encoded}"

    def has_signed(self, text: str, signature: Signature) -> bool:
        """Whether this signature is of this key and this text."""
        if (signature.name, signature.key_id) != (self.name, self.key_id):
            return False
        signed, value = text.encode(), signature.value
        if self.kind == COSIGNATURE:
            at = int.from_bytes(value[:TIME_SIZE])
            signed = f"cosignature/v1\ntime {at}\n".encode() + signed
            value = value[TIME_SIZE:]
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(value, signed)
        except InvalidSignature:
            return False
        return True


class SigningKey:
    """The private half, under the name of the log: its origin."""

    def __init__(self, name: str, seed: bytes) -> None:
        if not _NAME.fullmatch(name):
            raise errors.ConfigurationError("audit_origin may hold neither spaces nor a plus sign")
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.verifier = VerifierKey(name, self._key.public_key().public_bytes_raw())

    @classmethod
    def parse(cls, name: str, text: str) -> "SigningKey":
        """Read the setting: 32 bytes in base64url. Raises ConfigurationError."""
        try:
            seed = base64url.decoded(text)
        except ValueError:
            seed = b""
        if len(seed) != SEED_SIZE:
            raise errors.ConfigurationError("audit_signing_key must be 32 bytes in base64url")
        return cls(name, seed)

    @classmethod
    def derived(cls, name: str, secret: str) -> "SigningKey":
        """One that follows from another secret."""
        info = b"outlast audit signing key"
        kdf = HKDF(algorithm=SHA256(), length=SEED_SIZE, salt=None, info=info)
        return cls(name, kdf.derive(secret.encode()))

    def sign(self, text: str) -> str:
        """The note with this text, which ends with a line feed."""
        value = self.verifier.key_id + self._key.sign(text.encode())
        line = f"{_DASH}{self.verifier.name} {base64.b64encode(value).decode()}\n"
        return f"{text}\n{line}"


class CheckpointNotary:
    """`Notary` with one key to sign by, if any, and some to believe."""

    def __init__(
        self, origin: str, signing: SigningKey | None, trusted: Sequence[VerifierKey]
    ) -> None:
        self._origin, self._signing, self._trusted = origin, signing, list(trusted)

    def sign(self, size: int, root: bytes) -> str:
        """See `Notary.sign`."""
        if self._signing is None:
            raise errors.ConfigurationError("there is no key to sign checkpoints with")
        return self._signing.sign(body_of(self._origin, Signed(size, root)))

    def read(self, note: str) -> Signed:
        """See `Notary.read`."""
        text, signatures = opened(note)
        origin, signed = parse_body(text)
        if origin != self._origin:
            raise errors.NoteRefused(f"The checkpoint is of the log {origin!r}")
        if not any(key.has_signed(text, each) for each in signatures for key in self._trusted):
            raise errors.NoteRefused
        return signed


def body_of(origin: str, signed: Signed) -> str:
    """The text of a checkpoint's note."""
    return f"{origin}\n{signed.size}\n{base64.b64encode(signed.root).decode()}\n"


def parse_body(text: str) -> tuple[str, Signed]:
    """Origin and tree of a checkpoint; further lines are others' business. Raises NoteRefused."""
    origin, *lines = text.split("\n")
    if len(lines) >= 3 and origin and _DECIMAL.fullmatch(lines[0]):  # noqa: PLR2004 - after it size and root
        root = _decoded(lines[1])
        if root is not None and len(root) == merkle.HASH_SIZE:
            return origin, Signed(int(lines[0]), root)
    raise errors.NoteRefused("This note is not a checkpoint")


def opened(note: str) -> tuple[str, list[Signature]]:
    """The text of a note and its signatures, unproven. Raises NoteRefused."""
    text, separator, tail = note.rpartition("\n\n")
    if not separator or not tail.endswith("\n") or len(note) > NOTE_SIZE_MAX:
        raise errors.NoteRefused("This is not a signed note")
    return text + "\n", signatures_of(tail)


def signatures_of(lines: str) -> list[Signature]:
    """These lines of signatures. Raises NoteRefused for any other line."""
    found: list[Signature] = []
    for line in lines.removesuffix("\n").split("\n"):
        name, _, encoded = line.removeprefix(_DASH).partition(" ")
        value = _decoded(encoded)
        is_good = line.startswith(_DASH) and _NAME.fullmatch(name)
        if not is_good or value is None or len(value) <= KEY_ID_SIZE:
            raise errors.NoteRefused("This is not a signed note")
        found.append(Signature(name, value[:KEY_ID_SIZE], value[KEY_ID_SIZE:]))
    if len(found) > SIGNATURES_MAX:
        raise errors.NoteRefused("This note bears too many signatures")
    return found


def _decoded(encoded: str) -> bytes | None:
    """Standard base64 in its one right form, else None."""
    try:
        value = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None
    return value if base64.b64encode(value).decode() == encoded else None
