"""Payloads at rest: each task's events and view row are sealed under a data key of the task's own.

To destroy that key is to erase all that it sealed, wherever copies of it lie. The key itself is
stored wrapped, by a key that is not in the database; a rotation wraps it anew and touches no event.
What is sealed is bound to its place: task, version and topic are authenticated with it.
"""

import contextlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ..domain import base64url, errors
from . import codec, postgres

SEALED = b"\x01"  # JSON begins with `{` or a space, so plain and sealed rows lie in one log
VIEW = "view"  # the topic of a view row
KEY_BYTES, NONCE_BYTES = 32, 12
KEYS_CACHED_MAX = 20_000  # about 5 MB

# Idempotency keys are looked up, so they are not sealed but digested, under this key of no task.
NAMES = ""

_KEY_LINE = re.compile(r"([A-Za-z0-9._-]{1,64}):([A-Za-z0-9_-]{43})=?")


class KeyWrapping(Protocol):
    """What wraps data keys: keys from the settings, or a key management service.

    A wrapped key opens for its own task only. Both methods may raise StoreUnavailable.
    """

    @property
    def name(self) -> str:
        """What new data keys are wrapped by, as it stands in `data_keys.wrapped_by`."""
        ...

    async def wrap(self, task_id: str, key: bytes) -> bytes:
        """The key of this task as it may be stored, wrapped by `name`."""
        ...

    async def unwrap(self, task_id: str, wrapped: bytes, wrapped_by: str) -> bytes:
        """The key again. Raises KeyMissing for an unknown name, PayloadDamaged for other bytes."""
        ...


class LocalWrapping:
    """`KeyWrapping` by keys from the settings. The first one wraps, all of them unwrap."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._ciphers = {name: AESGCM(key) for name, key in map(_parsed, lines)}
        if len(self._ciphers) != len(lines) or not lines:
            raise errors.ConfigurationError("data_keys: there must be a key, each name only once")
        self._name = next(iter(self._ciphers))

    @property
    def name(self) -> str:
        """See `KeyWrapping.name`."""
        return self._name

    async def wrap(self, task_id: str, key: bytes) -> bytes:
        """See `KeyWrapping.wrap`."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._ciphers[self._name].encrypt(nonce, key, _key_place(task_id))

    async def unwrap(self, task_id: str, wrapped: bytes, wrapped_by: str) -> bytes:
        """See `KeyWrapping.unwrap`."""
        cipher = self._ciphers.get(wrapped_by)
        if cipher is None:
            raise errors.KeyMissing(task_id, wrapped_by)
        return _decrypted(cipher, wrapped, task_id, _key_place(task_id))


def new_key_line(name: str) -> str:
    """A fresh key as it stands in the setting `data_keys`."""
    return f"{name}:{base64url.encoded(secrets.token_bytes(KEY_BYTES))}"


def _parsed(line: str) -> tuple[str, bytes]:
    found = _KEY_LINE.fullmatch(line)
    if found is None:  # the line is not shown: it is a secret, or nearly one
        raise errors.ConfigurationError("data_keys: a key is NAME:43 characters of base64url")
    return found[1], base64url.decoded(found[2])


@dataclass(frozen=True)
class DataKey:
    """The key of a task that is about to be opened, and what is stored of it."""

    key: bytes = field(repr=False)
    wrapped: bytes
    wrapped_by: str


class Sealer:
    """Seals and opens for one process, and remembers the keys of the tasks it last met.

    `seals` says whether tasks that are opened from here on get a key. A task keeps what it was
    opened with: all its rows are sealed, or none is.
    """

    def __init__(
        self,
        database: postgres.Database,
        wrapping: KeyWrapping | None = None,
        *,
        seals: bool | None = None,
        most: int = KEYS_CACHED_MAX,
    ) -> None:
        self._database, self._wrapping, self._most = database, wrapping, most
        self.seals = wrapping is not None if seals is None else seals
        self._keys: OrderedDict[str, bytes | None] = OrderedDict()
        self._names_key: bytes | None = None

    async def new_key(self, task_id: str) -> DataKey | None:
        """A key for a task to be opened; None when it is to be plain."""
        if not self.seals:
            return None
        wrapping = self._wrapping_for(task_id, "")
        key = secrets.token_bytes(KEY_BYTES)
        return DataKey(key, await wrapping.wrap(task_id, key), wrapping.name)

    def opened(self, task_id: str, key: DataKey | None) -> None:
        """This task was opened with this key."""
        self._remember(task_id, key.key if key else None)

    def knows(self, task_id: str) -> bool:
        """Whether `key_of` would answer without the database."""
        return task_id in self._keys

    async def key_of(self, task_id: str) -> bytes | None:
        """The data key of this task; None for one without, whose rows are plain or are erased."""
        if task_id in self._keys:
            self._keys.move_to_end(task_id)
            return self._keys[task_id]
        # That it has none is only remembered of a task that is there: it may be opened later.
        (row,) = await self._database.rows(
            "SELECT k.wrapped, k.wrapped_by, EXISTS"
            " (SELECT 1 FROM outlast.task_view v WHERE v.task_id = one.id)"
            " FROM (SELECT %s::text) one(id) LEFT JOIN outlast.data_keys k ON k.task_id = one.id",
            task_id,
        )
        wrapped, wrapped_by, is_stored = row
        if wrapped is None and not is_stored:
            return None
        return await self.learn(task_id, wrapped, wrapped_by)

    async def meet(self, task_ids: Sequence[str]) -> None:
        """Remember the keys of these stored tasks, by one statement for all that are not yet.

        Those that cannot be unwrapped are left for `key_of` to say so.
        """
        unknown = [task_id for task_id in task_ids if task_id not in self._keys]
        if not unknown:
            return
        rows = await self._database.rows(
            "SELECT task_id, wrapped, wrapped_by FROM outlast.data_keys WHERE task_id = ANY(%s)",
            unknown,
        )
        for task_id, wrapped, wrapped_by in rows:
            with contextlib.suppress(errors.PayloadError):
                await self.learn(task_id, wrapped, wrapped_by)

    async def learn(
        self, task_id: str, wrapped: bytes | None, wrapped_by: str | None
    ) -> bytes | None:
        """`key_of`, for a stored task whose row of `data_keys` the caller has read."""
        if wrapped is None or wrapped_by is None:
            return self._remember(task_id, None)
        return self._remember(task_id, await self.unwrap(task_id, wrapped, wrapped_by))

    async def unwrap(self, task_id: str, wrapped: bytes, wrapped_by: str) -> bytes:
        """The key in a row of `data_keys`, for those who read many. Nothing is remembered."""
        wrapping = self._wrapping_for(task_id, wrapped_by)
        return await wrapping.unwrap(task_id, bytes(wrapped), wrapped_by)

    def drop(self, task_ids: Iterable[str]) -> None:
        """Remember these keys no longer: they are destroyed."""
        for task_id in task_ids:
            self._keys.pop(task_id, None)

    def _remember(self, task_id: str, key: bytes | None) -> bytes | None:
        self._keys[task_id] = key
        self._keys.move_to_end(task_id)
        if len(self._keys) > self._most:
            self._keys.popitem(last=False)
        return key

    def _wrapping_for(self, task_id: str, name: str) -> KeyWrapping:
        if self._wrapping is None:
            raise errors.KeyMissing(task_id, name)
        return self._wrapping

    # --- payloads

    def seal(
        self, key: bytes | None, task_id: str, version: int, topic: str, plain: bytes
    ) -> bytes:
        """What may be stored of this payload, in this place alone. Without a key: it, unchanged."""
        if key is None:
            return plain
        nonce = secrets.token_bytes(NONCE_BYTES)
        # A key has few uses, and to make a cipher takes 1 us: no second place to keep keys in.
        sealed = AESGCM(key).encrypt(nonce, plain, _place(task_id, version, topic))
        return SEALED + nonce + sealed

    def open(
        self, key: bytes | None, task_id: str, version: int, topic: str, stored: bytes
    ) -> bytes:
        """The payload. Raises PayloadErased where a key is lacking, else PayloadDamaged.

        With a key, a plain row is refused as well: nobody who has no key can put one there.
        """
        if key is None:
            if is_sealed(stored):
                self.drop([task_id])  # looked up again next time: a backup may bring it back
                raise errors.PayloadErased(task_id)
            return bytes(stored)
        if not is_sealed(stored):
            raise errors.PayloadDamaged(task_id)
        return _decrypted(AESGCM(key), stored[1:], task_id, _place(task_id, version, topic))

    # --- names

    async def stored_name(self, idempotency_key: str) -> str:
        """What an opening stores of an idempotency key: what cannot be guessed without our keys."""
        if not self.seals:
            return codec.digest(idempotency_key)
        return _keyed(await self._key_of_names(), idempotency_key)

    async def names_of(self, idempotency_key: str) -> list[str]:
        """All that an opening may have stored of it: sealing may have been turned on since."""
        plain = codec.digest(idempotency_key)
        if self._wrapping is None:
            return [plain]
        return [_keyed(await self._key_of_names(), idempotency_key), plain]

    async def _key_of_names(self) -> bytes:
        if self._names_key is None:
            wrapping = self._wrapping_for(NAMES, "")
            fresh = await wrapping.wrap(NAMES, secrets.token_bytes(KEY_BYTES))
            await self._database.rows(
                "INSERT INTO outlast.data_keys (task_id, wrapped, wrapped_by) VALUES (%s, %s, %s)"
                " ON CONFLICT (task_id) DO NOTHING",
                NAMES,
                fresh,
                wrapping.name,
            )
            ((wrapped, wrapped_by),) = await self._database.rows(
                "SELECT wrapped, wrapped_by FROM outlast.data_keys WHERE task_id = %s", NAMES
            )
            self._names_key = await self.unwrap(NAMES, wrapped, wrapped_by)
        return self._names_key


def is_sealed(stored: bytes) -> bool:
    """True for what needs a key to be read, and for what was erased."""
    return stored[:1] in {SEALED, b""}


def _decrypted(cipher: AESGCM, sealed: bytes, task_id: str, place: bytes) -> bytes:
    try:
        return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], place)
    except (InvalidTag, ValueError):  # ValueError: shorter than a nonce
        raise errors.PayloadDamaged(task_id) from None


def _place(task_id: str, version: int, topic: str) -> bytes:
    parts = (task_id.encode(), str(version).encode(), topic.encode())
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _key_place(task_id: str) -> bytes:
    return b"outlast data key\0" + task_id.encode()


def _keyed(key: bytes, text: str) -> str:
    return hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256").hex()
