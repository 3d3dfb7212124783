"""Where a server's own time goes while it is under load, seen from outside by `py-spy`.

Samples are taken of the thread that holds the interpreter, so waiting does not count. Time in C
code counts for the Python function that called it; the event loop's own C code stands under the
function that runs the loop.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

RATE_HZ = 200
OVER_S = 60.0
ROOT = Path(__file__).resolve().parents[2]
FRAME = re.compile(r"^(?P<function>.+) \((?P<file>.+?)(:\d+)?\)$")
PACKAGE = re.compile(r"site-packages/([^/.]+)")
LIBRARY = re.compile(r"lib/python3[^/]*/([^/.]+)")
SHOWN = 14
# The way into the loop is below everything and says nothing.
ENTRIES = ("service/cli/", "service/hosting.py", ".venv/")


def recorded(pid: int, folder: Path, seconds: int, under: Callable[[], Any]) -> dict[str, Any]:
    """The profile of a process while `under` runs, or why there is none."""
    spy = Path(sys.executable).with_name("py-spy")
    if not spy.exists():
        return {"missing": "py-spy is not installed"}
    out = folder / f"{pid}.profile"
    command = (spy, "record", "-r", str(RATE_HZ), "-d", str(seconds), "-f", "raw", "--gil")
    more = ("--full-filenames", "-o", str(out), "-p", str(pid))
    process = subprocess.Popen(
        (*command, *more), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    under()
    _, said = process.communicate(timeout=OVER_S)
    if process.returncode or not out.exists():
        return {"missing": f"py-spy could not look: {said.strip().splitlines()[-1:]}"}
    return grouped(out.read_text().splitlines())


def grouped(stacks: list[str]) -> dict[str, Any]:
    """Shares of all samples in percent: by who was at work, and of our functions and all below."""
    owners: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    total = 0
    for stack in stacks:
        told, _, count = stack.rpartition(" ")
        frames = [found for each in told.split(";") if (found := FRAME.match(each))]
        if not frames:
            continue
        total += int(count)
        owners[_owner(frames[-1]["file"])] += int(count)
        for name in {_ours(frame) for frame in frames} - {""}:
            functions[name] += int(count)
    return {
        "samples": total,
        "by_owner": _shares(owners, total),
        "of_ours": _shares(functions, total),
    }


def _shares(counts: Counter[str], total: int) -> dict[str, float]:
    return {name: round(100 * n / total, 1) for name, n in counts.most_common(SHOWN)}


def _owner(file: str) -> str:
    """The room of ours, the package or the library that a file belongs to."""
    if found := PACKAGE.search(file):
        return found[1]
    if found := LIBRARY.search(file):
        return f"standard library: {found[1]}"
    if place := _place(file):
        return f"outlast: {place.rpartition('/')[0]}"
    return "generated code" if file.startswith("<") else Path(file).name


def _ours(frame: "re.Match[str]") -> str:
    place = "" if PACKAGE.search(frame["file"]) else _place(frame["file"])
    return f"{place}: {frame['function']}" if place and not place.startswith(ENTRIES) else ""


def _place(file: str) -> str:
    """Where a file of ours stands in the tree; nothing for one that is not ours."""
    path = Path(file)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
