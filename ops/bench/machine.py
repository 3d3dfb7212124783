"""What the figures were taken on: the machine, and the versions of all that took part."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psycopg

from outlast.ops.bench import programs

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("fastmcp-tasks", "fastmcp", "pydocket", "redis", "hiredis", "mcp", "fastapi", "starlette"),
    *("uvicorn", "uvloop", "httptools", "psycopg", "pydantic", "orjson", "eventsourcing"),
)
SETTINGS = ("fsync", "synchronous_commit", "shared_buffers", "max_connections")
GIB = 1 << 30


def described() -> dict[str, str]:
    """Of the machine and the programs, as a table."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "taken": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, at commit {_commit()}",
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{pages / GIB:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "Python": platform.python_version(),
        "Redis": _said("redis-server", "--version", 2).removeprefix("v="),
        "wrk": _said("wrk", "-v", 1),
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
    }


def of_store(url: str) -> dict[str, str]:
    """Of the database server."""
    with psycopg.connect(url) as connection:
        told = [f"{name} {connection.execute(f'SHOW {name}').fetchone()[0]}" for name in SETTINGS]  # pyright: ignore[reportOptionalSubscript] - a setting has one row
        version = connection.info.server_version // 10_000, connection.info.server_version % 100
    return {"PostgreSQL": f"{version[0]}.{version[1]}: {', '.join(told)}"}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _commit() -> str:
    done = subprocess.run(
        ("git", "describe", "--always", "--dirty"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def _said(program: str, option: str, word: int) -> str:
    if not programs.is_there(program):
        return "not there"
    done = subprocess.run((program, option), capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).split()[word]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not there"
