"""One embedded server for all who use a folder at the same time, none of whom must stay for others.

    FOLDER/users.lock   flock, held shared by each process that uses the server, for its life

The first `outlast stdio` starts a keeper, unless somebody owns the server already: a process that
owns it like any owner and ends with its last user. So a user may come, go and be killed at any
time: the others notice nothing. A keeper that was killed is started again by whoever is left, and
whoever owns the folder otherwise is joined.
"""

import asyncio
import fcntl
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from ..domain.errors import ConfigurationError
from . import embedded_cluster as cluster
from .embedded import START_S_MAX, find_running, is_owned
from .embedded_owner import owned

LOOK_S = 1.0  # how often a user looks whether somebody still owns the server
UNUSED_LOOK_S = 0.5  # how often the keeper looks whether it has users
WAIT_S = 0.02
READY = b"ready\n"

_log = logging.getLogger("outlast.store")


@asynccontextmanager
async def shared(folder: Path) -> AsyncGenerator[str]:
    """The URL of the server of `folder`, an absolute path, which answers while the block lasts.

    Raises ConfigurationError, which says what to do.
    """
    async with _used(folder):
        url = await _found(folder)
        seeing_to_it = asyncio.create_task(_see_to(folder, url))
        try:
            yield url
        finally:
            seeing_to_it.cancel()
            await asyncio.gather(seeing_to_it, return_exceptions=True)


@contextmanager
def using(folder: Path) -> Generator[None]:
    """For a block that uses the server of `folder`, or owns it: no keeper ends meanwhile.

    Blocks while a keeper that has begun to end is there. A keeper never waits for this, and a
    server starts without it. Raises ConfigurationError, which says what to do.
    """
    with _users(folder) as lock:
        if not cluster.until(lambda: _lock(lock, fcntl.LOCK_SH), START_S_MAX):
            raise ConfigurationError(
                f"The PostgreSQL of {folder} is being stopped and does not end"
            )
        yield


@asynccontextmanager
async def _used(folder: Path) -> AsyncGenerator[None]:
    with _users(folder) as lock:
        # A keeper that ends has it until its server is gone.
        while not _lock(lock, fcntl.LOCK_SH):  # noqa: ASYNC110 - the kernel offers no event here
            await asyncio.sleep(WAIT_S)
        yield


@contextmanager
def _users(folder: Path) -> Generator[int]:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"The embedded PostgreSQL cannot use the folder {folder} ({error}): "
            "choose one that you may write to, or set --database-url"
        ) from error
    try:
        yield lock
    finally:
        os.close(lock)


async def _found(folder: Path) -> str:
    """The URL, once whoever owns the folder has a server ready. Raises ConfigurationError."""
    try:
        async with asyncio.timeout(START_S_MAX):
            return await _until_found(folder)
    except TimeoutError:
        raise ConfigurationError(f"The owner of {folder} has no PostgreSQL ready") from None


async def _until_found(folder: Path) -> str:
    while True:
        url = find_running(folder)
        if url is not None:
            return url
        if not is_owned(folder):
            told = await _start_keeper(folder)
            if told != READY and not is_owned(folder):
                raise ConfigurationError(told.decode(errors="replace").strip() or "no keeper")
        await asyncio.sleep(WAIT_S)


async def _see_to(folder: Path, url: str) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        if is_owned(folder):
            continue
        try:
            again = await _found(folder)
        except (ConfigurationError, OSError) as error:
            _log.warning("the embedded PostgreSQL is gone: %s", error)
            continue
        if again != url:  # its socket is in a folder with a new name where paths are long
            _log.error("the embedded PostgreSQL is now elsewhere: start this process again")


async def _start_keeper(folder: Path) -> bytes:
    """What a new keeper has to say: READY, or why it is none."""
    command = [sys.executable, "-P", "-m", __name__, str(folder)]
    # Not asyncio's: that would end it with us. A session of its own: what ends a client's processes
    # all at once would end the server of others.
    process = subprocess.Popen(  # noqa: ASYNC220 - only its start blocks, for a millisecond
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        start_new_session=True,
    )
    told = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(told), process.stdout
    )
    try:
        return await told.read()
    finally:
        pipe.close()
        process.poll()


def keep(folder: Path) -> int:
    """Run the folder's server until nobody uses it or it dies; the exit status."""
    try:
        with _users(folder) as users, owned(folder) as server:
            _say(READY)
            pause = threading.Event()
            # Once nobody has it, it is ours: who comes now waits until the server has been stopped.
            while not (server.has_ended or _lock(users, fcntl.LOCK_EX)):
                pause.wait(UNUSED_LOOK_S)
    except ConfigurationError as error:
        _say(f"{error}\n".encode())
        return 1
    return 0


def _lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _say(told: bytes) -> None:
    """Tell who started us, and let go of their pipe."""
    with suppress(OSError):
        os.write(1, told)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(keep(Path(sys.argv[1])))
