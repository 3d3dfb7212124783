"""The sockets of an embedded server whose own path is too long for one: private, found, removed."""

import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from outlast.adapters.embedded import EmbeddedServer
from outlast.tests.support.embedded_owner import owner_process


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of mode 700 with a short path."""
    with tempfile.TemporaryDirectory(prefix="ol-") as made:
        yield Path(made)


def query(url: str, statement: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize("name", ["a long one " * 9, "one, two", 'a "b"'])
def test_a_path_that_fits_no_socket_gets_a_private_one_that_is_removed(
    home: Path, name: str
) -> None:
    folder = home / name
    with EmbeddedServer.start(folder) as server:
        sockets = (folder / "pg" / "run").readlink()
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        assert query(server.url, "SELECT 1") == 1
    assert not sockets.exists()
    with owner_process(folder) as (_, kill):
        sockets = (folder / "pg" / "run").readlink()
        kill()
    assert sockets.exists()
    with EmbeddedServer.start(folder) as server:
        assert query(server.url, "SELECT count(*) FROM kept") == 100
        # The same again: who still had the URL of the first one finds this one.
        assert (folder / "pg" / "run").readlink() == sockets
    assert not sockets.exists()


@pytest.mark.parametrize("mode", [0o755, None])
def test_a_socket_folder_that_is_gone_or_that_others_may_enter_is_not_used_again(
    home: Path, mode: int | None
) -> None:
    folder = home / "one, two"
    with owner_process(folder) as (_, kill):
        sockets = (folder / "pg" / "run").readlink()
        kill()
    with EmbeddedServer.start(folder):
        pass  # ends what the killed one has left
    (folder / "pg" / "run").symlink_to(sockets)
    if mode is not None:
        sockets.mkdir()
        sockets.chmod(mode)
    with EmbeddedServer.start(folder) as server:
        assert (folder / "pg" / "run").readlink() != sockets
        assert query(server.url, "SELECT 1") == 1
    assert not sockets.exists()
