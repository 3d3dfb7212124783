"""A PostgreSQL of one's own with settings of one's own, from the wheel that `serve` embeds."""

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg

from outlast.adapters import embedded_cluster as cluster

START_S_MAX = 60.0
QUIET = {
    "listen_addresses": "",
    "shared_buffers": "32MB",
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_checkpoints": "off",
}


def socket_url(folder: Path, database: str = "postgres") -> str:
    """Where the server whose socket lies in this folder is reached, as its superuser."""
    return f"postgresql://{cluster.SUPERUSER}@/{database}?host={folder}"


def make(data: Path) -> None:
    """An empty cluster."""
    data.parent.mkdir(parents=True, exist_ok=True)
    cluster.make(cluster.find_programs(), data, cluster.choose_user(data))


@contextmanager
def running(data: Path, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """The URL of its superuser, while the server of this cluster runs."""
    with tempfile.TemporaryDirectory(prefix="ol-", dir="/tmp") as sockets:  # short enough for one
        yield from _running(data, Path(sockets), settings)


def _running(data: Path, sockets: Path, settings: Mapping[str, str] | None) -> Iterator[str]:
    all_settings = {**QUIET, "unix_socket_directories": str(sockets), **(settings or {})}
    options = [part for item in all_settings.items() for part in ("-c", "=".join(item))]
    program = str(cluster.find_programs() / "postgres")
    with data.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(
            [*cluster.run_as(cluster.choose_user(data)), program, "-D", str(data), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=cluster.environment(data),
            start_new_session=True,
        )
    url, is_standby = socket_url(sockets), (data / "standby.signal").exists()
    try:
        assert cluster.until(lambda: _decided(url, process, is_standby=is_standby), START_S_MAX)
        assert process.poll() is None, data.with_suffix(".log").read_text()
        yield url
    finally:
        cluster.end(process)


def execute(url: str, statement: str) -> str:
    """Run one statement as the superuser; the first column of its first row."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
        return "" if row is None else str(row[0])


def _decided(url: str, process: "subprocess.Popen[bytes]", *, is_standby: bool) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
            return row == (is_standby,)
    except psycopg.OperationalError:
        return process.poll() is not None
