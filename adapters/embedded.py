"""A real PostgreSQL from the `embedded` extra: what `serve` runs when it is given no database URL.

    FOLDER/owner.lock   flock held for the owner's life; line 1 its pid, line 2 the URL once ready
    FOLDER/pg.log       what the server says; turned over at start once it is large
    FOLDER/pg/          mode 700, ours
        data/           the cluster
        run             the sockets, mode 700; a link to a folder under /tmp where paths are long

Nothing outside FOLDER changes its mode or owner, whoever runs this. The programs, the user they run
as and the processes that a crash leaves behind are in `embedded_cluster.py`. Schema and pools are
not here: this file ends at a URL.
"""

import fcntl
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self
from urllib.parse import quote

import psycopg

from ..domain.errors import ConfigurationError
from . import embedded_cluster as cluster

DATABASE = ROLE = "outlast"
START_S_MAX = 120.0  # after a crash, the replay of a long write-ahead log counts in here
LOCK_S_MAX = 0.5
OWNER_END_S_MAX = 5.0
SOCKET = ".s.PGSQL.5432"
PRIVATE = 0o700
SOCKET_PATH_BYTES_MAX = 100  # the kernel takes 107 (Linux) or 103 (macOS)
LOG_BYTES_MAX = 1 << 20
LOG_TAIL_LINES = 15

# On the command line, so that a changed value here reaches folders made long ago.
_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "port": "5432",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # An error is answered to the client, who logs it. Kept here as well, every refused append would
    # make this log grow, and show what a task holds.
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_checkpoints": "off",
}
_HAS_ROLE = "SELECT 1 FROM pg_roles WHERE rolname = %s"
_HAS_DATABASE = "SELECT 1 FROM pg_database WHERE datname = %s"


class EmbeddedServer:
    """One PostgreSQL with one owner: it answers at `url` from `start` to `stop`.

    Only a UNIX socket in a folder of mode 700 leads to it. What was committed survives the death of
    the server, of its owner or of both, in any order: the next `start` ends what is left and
    recovers. `start` and `stop` block. One that has died is not started again before the owner
    stops and starts it.
    """

    url: str
    pid: int

    def __init__(self, folder: Path, lock: int, look: Callable[[], None]) -> None:
        """Use `start`."""
        self._folder, self._lock, self._look = folder, lock, look
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @classmethod
    def start(cls, folder: Path, look: Callable[[], None] = lambda: None) -> Self:
        """Start the server of `folder`, which is made if missing.

        Raises ConfigurationError, which says what to do, and then leaves nothing running; so does
        what `look` raises, which is called again and again while the server is waited for.
        """
        bin_folder, folder = cluster.find_programs(), folder.absolute()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            server = cls(folder, _take_lock(folder), look)
        except OSError as error:
            raise _unusable(folder, error) from error
        try:
            server._start(bin_folder)
        except (OSError, psycopg.Error) as error:
            server.stop()
            raise _unusable(folder, error) from error
        except BaseException:
            server.stop()
            raise
        return server

    def stop(self) -> None:
        """End all sessions, write everything out and exit; by force if that takes too long.

        Idempotent. The folder is free for the next owner afterwards, even if this raises.
        """
        if self._lock < 0:
            return
        process, self._process = self._process, None
        try:
            if process is not None:
                cluster.end(process)
                cluster.end_remains(self._folder / "pg" / "data")
                _remove_socket_folder(self._folder / "pg" / "run")
        finally:
            lock, self._lock = self._lock, -1
            os.ftruncate(lock, 0)
            os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def has_ended(self) -> bool:
        """True once the server has died, or was stopped."""
        return self._process is None or self._process.poll() is not None

    def _start(self, bin_folder: Path) -> None:
        pg = self._folder / "pg"
        data, run = pg / "data", pg / "run"
        pg.mkdir(mode=0o700, exist_ok=True)
        pg.chmod(0o700)
        cluster.refuse_other_version(data)
        user = cluster.choose_user(data)
        cluster.end_remains(data)
        if not data.exists():
            cluster.make(bin_folder, data, user)
        sockets = _socket_folder_left(run)
        if sockets is None:
            _remove_socket_folder(run)
            sockets = _make_socket_folder(run)
        command = [*cluster.run_as(user), str(bin_folder / "postgres")]
        self._launch(command, data, sockets)
        address = f"host={quote(os.fsencode(sockets), safe='')}&port={_SETTINGS['port']}"
        self._provision(f"postgresql://{cluster.SUPERUSER}@/postgres?{address}")
        self.url = f"postgresql://{ROLE}@/{DATABASE}?{address}"
        os.write(self._lock, f"{self.url}\n".encode())

    def _launch(self, command: Sequence[str], data: Path, sockets: Path) -> None:
        settings = _SETTINGS | {"unix_socket_directories": str(sockets)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with _open_log(self._folder) as log:
            self._log_start = log.tell()
            # Its own session: Ctrl-C in a terminal reaches us alone, and we stop it in order. No
            # parent-death signal: that one fires when the starting thread ends.
            self._process = subprocess.Popen(
                [*command, "-D", str(data), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=cluster.environment(data),
                start_new_session=True,
            )
        self.pid = self._process.pid

    def _provision(self, url: str) -> None:
        """Wait until the server takes connections; see to the role and the database."""
        tried: list[psycopg.OperationalError] = []

        def is_decided() -> bool:
            self._look()
            try:
                psycopg.connect(url, connect_timeout=10).close()
            except psycopg.OperationalError as error:
                tried[:] = [error]
                return self.has_ended
            return True

        if not cluster.until(is_decided, START_S_MAX):
            raise self._failure(f"takes no connections after {START_S_MAX:g} s ({tried[-1]})")
        if self.has_ended:
            raise self._failure("ended at once")
        with psycopg.connect(url, autocommit=True) as connection:
            # No superuser: run by root, the server may write any file, and our SQL has no need to.
            if not connection.execute(_HAS_ROLE, [ROLE]).fetchone():
                connection.execute(f"CREATE ROLE {ROLE} LOGIN CREATEDB IN ROLE pg_monitor")
            if not connection.execute(_HAS_DATABASE, [DATABASE]).fetchone():
                connection.execute(f"CREATE DATABASE {DATABASE} OWNER {ROLE}")

    def _failure(self, what: str) -> ConfigurationError:
        path = self._folder / "pg.log"
        with open(path, "rb") as file:
            file.seek(self._log_start)
            lines = file.read(LOG_BYTES_MAX).decode(errors="replace").splitlines()
        tail = "\n".join(lines[-LOG_TAIL_LINES:])
        return ConfigurationError(f"The embedded PostgreSQL {what}. The end of {path}:\n{tail}")


def find_running(folder: Path) -> str | None:
    """The URL of the server that a live owner runs in `folder`; None if there is none, or not yet.

    Raises ConfigurationError for a folder that may not be read.
    """
    try:
        lock = os.open(folder / "owner.lock", os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        if _lock(lock, fcntl.LOCK_SH):
            return None
        _, _, url = os.pread(lock, 4096, 0).decode().partition("\n")
    finally:
        os.close(lock)
    if not url.endswith("\n") or not cluster.remains(folder / "pg" / "data"):
        return None
    return url.strip()


def is_owned(folder: Path) -> bool:
    """True while a live process owns `folder`, whether its server is ready or not."""
    try:
        lock = os.open(folder / "owner.lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _lock(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


@contextmanager
def outliving(folder: Path) -> Generator[None]:
    """For the block that still uses the server of `folder` although its owner has died.

    The last such block to end ends the server too, unless a new owner has come first.
    """
    try:
        lock = os.open(folder / "owner.lock", os.O_RDWR)
    except OSError:
        yield
        return
    try:
        # The kernel closes the files of a dead owner in no order: others may be gone before this.
        held = cluster.until(lambda: _lock(lock, fcntl.LOCK_SH), OWNER_END_S_MAX)
        yield
        # To turn it into a lock for one alone fails for all but the last: nobody asks twice.
        if held and _lock(lock, fcntl.LOCK_EX):
            cluster.end_remains(folder.absolute() / "pg" / "data")
            _remove_socket_folder(folder.absolute() / "pg" / "run")
            os.ftruncate(lock, 0)
    finally:
        os.close(lock)


def _lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _take_lock(folder: Path) -> int:
    # Python closes it in every program that is started, so it is ours alone and dies with us.
    file = os.open(folder / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    # A moment of patience: `find_running` holds a shared lock while it looks.
    if not cluster.until(lambda: _lock(file, fcntl.LOCK_EX), LOCK_S_MAX):
        pid = os.pread(file, 32, 0).decode().partition("\n")[0] or "unknown"
        os.close(file)
        raise ConfigurationError(
            f"{folder} is in use by another process, pid {pid}: stop that one, or choose another "
            "folder, or set --database-url"
        )
    os.ftruncate(file, 0)
    os.write(file, f"{os.getpid()}\n".encode())
    return file


def _socket_folder_left(run: Path) -> Path | None:
    """The folder elsewhere that an owner before us has left, emptied: so its URL is good again.

    Who used the server of an owner that was killed finds the next one without being told.
    """
    if not run.is_symlink():
        return None
    sockets = run.readlink()
    with suppress(OSError):
        status = sockets.lstat()
        is_private = stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == PRIVATE
        if is_private and status.st_uid == os.geteuid():
            for name in (SOCKET, f"{SOCKET}.lock"):
                (sockets / name).unlink(missing_ok=True)
            return sockets
    return None


def _make_socket_folder(run: Path) -> Path:
    too_long = len(os.fsencode(run / SOCKET)) > SOCKET_PATH_BYTES_MAX
    # Server and client both take a list here, and the client has no way to quote a comma.
    if not too_long and not set(str(run)) & set(',"'):
        run.mkdir(mode=0o700)
        return run
    # Not under $TMPDIR, which may be just as long. The link tells what to remove after a crash.
    sockets = Path(tempfile.mkdtemp(prefix="outlast-", dir="/tmp"))
    run.symlink_to(sockets)
    return sockets


def _remove_socket_folder(run: Path) -> None:
    """Remove the sockets and their folder, linked or not, and never anything else in it."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in (SOCKET, f"{SOCKET}.lock"):
            (run / name).unlink(missing_ok=True)
    if run.is_symlink():
        with suppress(OSError):
            run.readlink().rmdir()
        run.unlink()
    elif run.exists():
        run.rmdir()


def _open_log(folder: Path) -> BinaryIO:
    log = folder / "pg.log"
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(folder / "pg.log.1")
    return open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600))


def _unusable(folder: Path, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"The embedded PostgreSQL cannot use the folder {folder} ({error}): "
        "choose one that you may write to, or set --database-url"
    )
