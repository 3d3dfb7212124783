"""A small file that only its owner can read, replaced as a whole: it is the old one or the new."""

import os
from contextlib import suppress
from pathlib import Path

import anyio.to_thread

from ..domain import errors


class PrivateFile:
    """What one process leaves for the next. All methods raise StoreUnavailable."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> bytes | None:
        """The content, or None where there is none."""
        try:
            return await anyio.to_thread.run_sync(self._path.read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(error) from error

    async def write(self, content: bytes) -> None:
        """Durable, also against a loss of power, once this returns."""
        try:
            await anyio.to_thread.run_sync(self._replace, content)
        except OSError as error:
            raise _unusable(error) from error

    async def remove(self) -> None:
        """Idempotent."""
        try:
            await anyio.to_thread.run_sync(lambda: self._path.unlink(missing_ok=True))
        except OSError as error:
            raise _unusable(error) from error

    def _replace(self, content: bytes) -> None:
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        with suppress(FileNotFoundError):
            draft.unlink()  # of a process that died here and had the same number
        try:
            with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _unusable(error: OSError) -> errors.StoreUnavailable:
    return errors.StoreUnavailable(f"A file of this client cannot be used: {error}")
