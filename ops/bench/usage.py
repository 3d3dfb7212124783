"""Processor time of processes, from the books of the kernel: a busy machine blurs it less."""

import os
from collections import defaultdict
from pathlib import Path

import psycopg

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def tree_cpu_s(pid: int) -> float:
    """What this process and all below it have used so far, those that have ended counted in."""
    used: dict[int, int] = {}
    below: defaultdict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile, and its parent has it in its own books
        used[int(folder.name)] = sum(map(int, fields[11:15]))
        below[int(fields[1])].append(int(folder.name))
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        total += used.get(one, 0)
        waiting += below[one]
    return total / TICKS_A_SECOND


def postmaster(url: str) -> int | None:
    """The pid of the server behind a database, where it runs on this machine."""
    with psycopg.connect(url) as connection:
        backend = connection.info.backend_pid
        try:
            is_here = Path(f"/proc/{backend}/comm").read_text().startswith("postgres")
            fields = Path(f"/proc/{backend}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
    return int(fields[1]) if is_here else None
