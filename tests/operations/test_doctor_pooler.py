"""`outlast doctor` through a real PgBouncer, in the mode that swallows LISTEN and in the other."""

import getpass
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from outlast.adapters import embedded_cluster as cluster
from outlast.tests.operations.doctoring import Visit, visit
from outlast.tests.support.ports import free_port

APT_S_MAX = 240.0
READY_S_MAX = 60.0


@pytest.fixture(scope="module")
def pgbouncer() -> str:
    """The program; as root on Debian it is installed."""
    found = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends"]):
            names = ["pgbouncer"] if words[0] == "install" else []
            command = ["apt-get", *words, *names]
            subprocess.run(command, env=quiet, check=False, capture_output=True, timeout=APT_S_MAX)
        found = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        pytest.skip("pgbouncer is not installed, and only root can install it here")
    return found


@contextmanager
def pooled(program: str, folder: Path, url: str, mode: str) -> Iterator[str]:
    """The URL of a pooler before this database."""
    there, port = conninfo_to_dict(url), free_port()
    place = {"host": there["host"], "port": there.get("port", "5432"), "dbname": there["dbname"]}
    backend = " ".join(f"{key}={value}" for key, value in place.items())
    if "password" in there:
        backend += f" password={there['password']}"
    user = there.get("user", getpass.getuser())
    backend += f" user={user}"
    (folder / "users.txt").write_text(f'"{user}" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\nshop = {backend}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"auth_file = {folder}/users.txt\npool_mode = {mode}\n"
        "ignore_startup_parameters = extra_float_digits\n"
        f"{_forgetful(program)}"
    )
    # As whoever the database runs as: its socket is in a folder that is not for everybody.
    words = [*cluster.run_as(cluster.choose_user(folder / "no cluster")), program]
    words += ["-q", str(folder / "pgbouncer.ini")]
    with (folder / "pgbouncer.log").open("ab") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)
    door = f"postgresql://{user}@127.0.0.1:{port}/shop"
    try:
        is_up = cluster.until(lambda: _answers(door), READY_S_MAX)
        assert is_up, (folder / "pgbouncer.log").read_text()
        yield door
    finally:
        process.terminate()
        process.wait()


def _forgetful(program: str) -> str:
    """The line by which it keeps no prepared statements; before 1.21 it could not keep any."""
    told = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    release = re.search(r"PgBouncer (\d+)\.(\d+)", told.stdout)
    assert release is not None, told.stdout
    knows = (int(release[1]), int(release[2])) >= (1, 21)
    return "max_prepared_statements = 0\n" if knows else ""


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def _seen(program: str, folder: Path, url: str, mode: str) -> Visit:
    with pooled(program, folder, url, mode) as door:
        return visit(folder, door)


@pytest.mark.promise("doctor-sees-a-pooler")
def test_a_transaction_pooler_is_found_by_what_it_swallows(
    pgbouncer: str, tmp_path: Path, database_url: str
):
    seen = _seen(pgbouncer, tmp_path, database_url, "transaction")
    assert seen.code == 1, seen
    assert seen.bad() == {"listen", "session", "prepared"}, seen.findings
    changes = [one["change"] for one in seen.findings if one["check"] == "listen"]
    assert "pool_mode = session" in changes[0]


@pytest.mark.promise("doctor-sees-a-pooler")
def test_a_session_pooler_is_as_good_as_the_server(
    pgbouncer: str, tmp_path: Path, database_url: str
):
    seen = _seen(pgbouncer, tmp_path, database_url, "session")
    assert seen.bad() == set(), seen
