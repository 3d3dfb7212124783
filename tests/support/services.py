"""`outlast serve` with several processes, and all that it has started."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from outlast.tests.acceptance.waiting import until
from outlast.tests.chaos.nodes import Node
from outlast.tests.service.conftest import desk_config
from outlast.tests.support.doors import processes_of
from outlast.tests.support.ports import free_port

READY_S_MAX = 120.0
GONE_S_MAX = 60.0
SERVED = "outlast: serving"


class Service(Node):
    """`outlast serve` with several processes, and where it listens."""

    def __init__(self, folder: Path, url: str | None, count: int = 2, *flags: str) -> None:
        config, self.port = folder / "outlast.toml", free_port()
        if not config.exists():
            config.write_text(desk_config())
        arguments = ["serve", "--config", str(config), "--port", str(self.port)]
        env = {"OUTLAST_DRAIN_S": "8"} | ({} if url is None else {"OUTLAST_DATABASE_URL": url})
        super().__init__(folder, "serve", [*arguments, "--processes", str(count), *flags], env)

    @property
    def processes(self) -> dict[int, int]:
        """Their pids by their numbers."""
        return processes_of(self.pid)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def family(self) -> set[int]:
        """Every process that it has started, and what those have."""
        found, last = self.children(), set[int]()
        while found != last:
            last = set(found)
            found |= {child for pid in last for child in children_of(pid)}
        return found


def children_of(pid: int) -> set[int]:
    with suppress(OSError):
        text = (Path("/proc") / str(pid) / "task" / str(pid) / "children").read_text()
        return set(map(int, text.split()))
    return set()


def lives(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@asynccontextmanager
async def served(service: Service) -> AsyncIterator[Service]:
    """It serves; in the end it and all that it had is gone."""
    service.start()
    try:
        await service.until_said(SERVED, READY_S_MAX)
        yield service
    finally:
        await service.make_gone()


async def until_gone(pids: set[int]) -> None:
    async def gone() -> bool:
        return not any(map(lives, pids))

    await until(gone, GONE_S_MAX)


async def until_restarted(service: Service, number: int, former: int) -> None:
    async def is_there() -> bool:
        assert service.is_running, service.log.read_text()
        return service.processes.get(number, former) != former

    await until(is_there, READY_S_MAX)
