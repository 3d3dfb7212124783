"""Who may import whom. The arrows point inward, and this page of `ast` holds them.

Every rule is shown to bite: each has a snippet that breaks it.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "outlast"

MAY_IMPORT: dict[str, set[str]] = {
    "domain": set(),
    "adapters": {"domain"},
    "delivery": {"domain"},
    "service": {"domain"},
    "examples": set(),
}
# The interface of a room, which names no concrete class, may be known where the room may not.
INTERFACES = {"service": {("delivery", "port")}}
WIRING = "service/wiring/"  # the one place that names concrete classes
WIRED = {"adapters", "delivery"}

# Foreign packages that only some files may name, so that a change of theirs is felt in one place.
NAMED_ONLY_IN = {"eventsourcing": {"adapters/event_log.py", "adapters/failures.py"}}

# In the standard library, and still not for a domain without clock, I/O or chance.
# fmt: off
IMPURE = frozenset({
    "asyncio", "glob", "http", "io", "logging", "multiprocessing", "os", "pathlib", "queue",
    "random", "secrets", "select", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess",
    "tempfile", "threading", "time", "urllib", "uuid",
})
# fmt: on
CLOCK_READS = frozenset({"now", "utcnow", "today"})
DYNAMIC_IMPORTS = frozenset({"import_module", "__import__"})


def breaches(path: str, source: str) -> list[str]:
    """What the file at `path` (from the root, with slashes) may not do, one line each."""
    tree = ast.parse(source, path)
    found = [_judge(path, target) for target in _targets(path, tree)]
    found += [_judge_call(path, node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [breach for breach in found if breach]


def _targets(path: str, tree: ast.Module) -> Iterator[str]:
    """The full dotted name of all that is imported, wherever in the file it stands."""
    package = [PACKAGE, *Path(path).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            # `from . import x` and `from outlast import x` may name a room: judge the longest name.
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def _judge(path: str, target: str) -> str | None:
    top, *below = target.split(".")
    if top == PACKAGE:
        return _judge_own(path, below)
    if path not in NAMED_ONLY_IN.get(top, {path}):
        return f"{path} imports {top}, which only {sorted(NAMED_ONLY_IN[top])} may name"
    if _room(path) == "domain" and (top not in sys.stdlib_module_names or top in IMPURE):
        return f"{path} imports {top}: the domain is pure and needs the standard library only"
    return None


def _judge_own(path: str, below: list[str]) -> str | None:
    room, target = _room(path), below[0] if below else ""
    if room not in MAY_IMPORT or target == room or tuple(below[:2]) in INTERFACES.get(room, ()):
        return None
    allowed = MAY_IMPORT[room] | (WIRED if path.startswith(WIRING) else set())
    # What is not a room (`__version__`) is the public face, which a file in a room below may read.
    if target in allowed or (target.startswith("__") and room != "examples"):
        return None
    return f"{path} imports {PACKAGE}.{target}: from {room} that arrow does not exist"


def _judge_call(path: str, call: ast.Call) -> str | None:
    name = getattr(call.func, "attr", getattr(call.func, "id", None))
    if _room(path) not in MAY_IMPORT:
        return None
    if name in DYNAMIC_IMPORTS:
        return f"{path}:{call.lineno} imports by a string, where no arrow can be seen"
    if _room(path) == "domain" and (name in CLOCK_READS or name == "open"):
        return f"{path}:{call.lineno} calls {name}: the domain is handed the instant, and no files"
    return None


def _room(path: str) -> str:
    return path.split("/", 1)[0]


def _sources() -> list[str]:
    files = (file for room in MAY_IMPORT for file in (ROOT / room).rglob("*.py"))
    return sorted(file.relative_to(ROOT).as_posix() for file in files)


@pytest.mark.promise("arrows-point-inward")
@pytest.mark.parametrize("path", _sources())
def test_every_import_follows_an_arrow(path: str) -> None:
    assert breaches(path, (ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.promise("arrows-point-inward")
@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("domain/task.py", "import pydantic"),
        ("domain/task.py", "from mcp_types import Tool"),
        ("domain/task.py", "import random"),
        ("domain/task.py", "from ..adapters import event_log"),
        ("domain/task.py", "from ..adapters.event_log import PostgresEventLog"),
        ("domain/task.py", "now = datetime.now(UTC)"),
        ("domain/task.py", "text = open('policy').read()"),
        ("adapters/run_queue.py", "from ..service.settings import settings"),
        ("adapters/run_queue.py", "from ..delivery import polling"),
        ("adapters/run_queue.py", "import eventsourcing.postgres"),
        ("adapters/run_queue.py", "def late():\n    from eventsourcing import postgres"),
        ("delivery/webhook/sender.py", "from ...adapters.event_log import PostgresEventLog"),
        ("delivery/polling.py", "from outlast.service import settings"),
        ("delivery/polling.py", "from .. import service"),
        ("service/endpoint.py", "from ..adapters import memory"),
        ("service/endpoint.py", "import outlast.adapters.memory"),
        ("service/endpoint.py", "if TYPE_CHECKING:\n    from ..adapters.memory import MemoryLog"),
        ("service/methods/tools.py", "from ...delivery.polling import Polling"),
        ("service/methods/tools.py", "from ...delivery import listen"),
        ("adapters/run_queue.py", "from ..delivery.port import Change"),
        ("service/cli/serve.py", "from ...adapters import embedded"),
        ("service/wiring/push.py", "import eventsourcing"),
        ("service/wiring/push.py", "from ...tests import support"),
        ("service/app.py", "factory = importlib.import_module(name)"),
        ("examples/ci_server.py", "from outlast import TaskClient"),
    ],
)
def test_an_import_against_the_arrows_is_named(path: str, source: str) -> None:
    assert [breach.partition(" ")[0].split(":")[0] for breach in breaches(path, source)] == [path]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("domain/task.py", "from . import events\nfrom .events import Json\nimport datetime"),
        ("adapters/event_log.py", "from eventsourcing.postgres import Recorder\nimport psycopg"),
        ("adapters/memory.py", "from ..domain import task\nfrom .keys import x\nimport time"),
        ("delivery/webhook/sender.py", "from ...domain.task import Task\nfrom ..port import Watch"),
        ("service/cli/serve.py", "from ..wiring import build\nfrom ... import __version__"),
        (
            "service/wiring/push.py",
            "from ...adapters.memory import MemoryLog\nfrom ...delivery import x",
        ),
        ("examples/ci_server.py", "from mcp.server import MCPServer"),
        ("tests/support/log.py", "from outlast.adapters import memory"),
    ],
)
def test_an_import_along_the_arrows_is_left_alone(path: str, source: str) -> None:
    assert breaches(path, source) == []
