"""The embedded stores of the tests of `outlast stdio`: which of them run."""

from pathlib import Path

from outlast.tests.acceptance.waiting import until

GONE_S_MAX = 60.0


def servers(folder: Path) -> set[str]:
    """The main processes of PostgreSQL that run on this folder's store."""
    data = folder / ".outlast" / "pg" / "data"
    found: dict[str, str] = {}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "cwd").samefile(data):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"/postgres"):
                    parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                    found[process.name] = parent
        except OSError:
            continue
    # A child that has just been forked still has the words of its parent.
    return {pid for pid, parent in found.items() if parent not in found}


async def until_no_store(folder: Path) -> None:
    async def gone() -> bool:
        return not servers(folder)

    await until(gone, GONE_S_MAX)
