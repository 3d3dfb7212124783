"""One embedded server for `outlast stdio`, a worker and the commands: the last one to use it."""

import fcntl
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import psycopg
import pytest

from outlast.adapters import embedded_shared
from outlast.adapters.embedded import find_running, is_owned
from outlast.domain.errors import ConfigurationError
from outlast.service import settings, wiring
from outlast.service.settings import Settings
from outlast.tests.acceptance.waiting import until

pytestmark = [
    pytest.mark.anyio,
    # The keeper outlives who has started it, which is what it is for.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

PATIENCE_S = 60.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="ol-") as made:
        yield Path(made) / "store"


@pytest.fixture
def chosen(folder: Path) -> Settings:
    return settings.load({"data_folder": folder}, {})


def answers(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)


@contextmanager
def keeper_that_ends(folder: Path) -> Generator[None]:
    """What a keeper holds from its last look for users until its server is gone."""
    folder.mkdir(exist_ok=True)
    with (folder / "users.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


async def until_nobody_owns(folder: Path) -> None:
    async def is_free() -> bool:
        return not is_owned(folder)

    await until(is_free, PATIENCE_S)


@pytest.mark.promise("stdio-clients-share-a-store")
async def test_a_store_stays_when_the_last_stdio_client_leaves_a_worker_behind(
    folder: Path, chosen: Settings
) -> None:
    with ExitStack() as working, anyio.fail_after(PATIENCE_S):
        async with wiring.shared_database(chosen) as shared:
            url = working.enter_context(wiring.database(chosen, share=True))
            assert url == shared
        with pytest.raises(BlockingIOError), keeper_that_ends(folder):
            pass
        assert answers(url)
    await until_nobody_owns(folder)


async def test_who_comes_while_a_keeper_ends_waits_for_its_end_but_not_for_ever(
    folder: Path, chosen: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_shared, "START_S_MAX", 0.01)
    with (
        keeper_that_ends(folder),
        pytest.raises(ConfigurationError, match=str(folder)),
        wiring.database(chosen, share=True),
    ):
        pass
    monkeypatch.undo()
    with wiring.database(chosen, share=True) as url:
        assert answers(url)
    assert not is_owned(folder)


async def test_a_stdio_client_outlives_the_command_whose_server_it_has_joined(
    folder: Path, chosen: Settings
) -> None:
    with anyio.fail_after(PATIENCE_S):
        with ExitStack() as working:
            url = working.enter_context(wiring.database(chosen, share=True))
            joining = wiring.shared_database(chosen)
            assert await joining.__aenter__() == url
        try:
            found: list[str | None] = []

            async def is_there_again() -> bool:
                found[:] = [find_running(folder)]
                return found != [None]

            await until(is_there_again, PATIENCE_S)
            assert found == [url]
            assert answers(url)
        finally:
            await joining.__aexit__(None, None, None)
    await until_nobody_owns(folder)


async def test_a_command_that_brings_its_own_database_counts_nowhere(chosen: Settings) -> None:
    given = chosen.model_copy(update={"database_url": "postgresql://elsewhere/"})
    with wiring.database(given, share=True) as url:
        assert url == "postgresql://elsewhere/"
    assert not chosen.data_folder.exists()
