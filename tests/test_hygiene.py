"""What a linter does not know: lengths, silent imports, reasons beside exceptions, words that leak.

Every rule is shown to bite: each has a snippet that breaks it.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("domain", "adapters", "delivery", "service", "examples", "ops", "tests")
IMPORTABLE = ("domain", "adapters", "delivery", "service", "examples", "ops")

FUNCTION_LINES_MAX = 40
FILE_LINES_MAX = 400
IMPORT_S_MAX = 300

# "path::function": why it may be longer. An entry that is no longer needed fails too.
LONG_FUNCTIONS: dict[str, str] = {}

LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
LEFTOVER_WITH_REASON = re.compile(r"\b(TODO|FIXME)\(issue \d+\): \w+")
SUPPRESSION = re.compile(r"#\s*(noqa|type:\s*ignore|pyright:\s*ignore)")
SUPPRESSION_WITH_REASON = re.compile(
    r"(noqa:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*|pyright:\s*ignore\[\w+(,\s*\w+)*\])\W+\w+\s+\w+"
)

# Put together here, so that this page does not contain what it looks for.
LEAKS = [
    *(
        "/wo" + "rk/",
        "sha" + "red/",
        "/tmp/" + "brief",
        "/ro" + "ot/",
        "/opt/" + "pypi",
        "/opt/" + "wheels",
    ),
    *("pypi" + ".org", "python" + "hosted.org", "registry" + ".npmjs", "registry" + ".yarnpkg"),
    *("--index" + "-url", "--extra-index" + "-url", "--find" + "-links", "--regis" + "try"),
]
NOT_OURS = {"build", "dist", "node_modules", "results", "__pycache__"}


def long_functions(path: str, source: str) -> list[str]:
    """`path::function` for every function longer than the limit, decorators not counted."""
    return [
        f"{path}::{node.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]


def untidy(source: str) -> list[str]:
    """What a file lacks or has too much of, one line each."""
    found: list[str] = []
    if len(source.splitlines()) > FILE_LINES_MAX:
        found.append(f"more than {FILE_LINES_MAX} lines")
    if source.strip() and not ast.get_docstring(ast.parse(source)):
        found.append("no module docstring")
    for line, comment in _comments(source):
        if LEFTOVER.search(comment) and not LEFTOVER_WITH_REASON.search(comment):
            found.append(f"line {line}: unfinished, and no `TODO(issue N): why`")
        if SUPPRESSION.search(comment) and not SUPPRESSION_WITH_REASON.search(comment):
            found.append(f"line {line}: a check is switched off without its name or a reason")
    return found


def leaks(text: str) -> list[str]:
    """Words that belong to somebody's machine."""
    return [word for word in LEAKS if word in text]


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _python_files(rooms: tuple[str, ...] = ROOMS) -> list[str]:
    found = [file for room in rooms for file in (ROOT / room).rglob("*.py")]
    return sorted(
        file.relative_to(ROOT).as_posix() for file in found if not NOT_OURS & set(file.parts)
    )


def _text_files() -> list[str]:
    found = [*ROOT.glob("*"), *(ROOT / ".ci").rglob("*")]
    found += [file for room in (*ROOMS, "docs") for file in (ROOT / room).rglob("*")]
    ours = (file for file in found if file.is_file() and not NOT_OURS & set(file.parts))
    return sorted(file.relative_to(ROOT).as_posix() for file in ours)


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", ["__init__.py", *_python_files()])
def test_every_file_is_tidy(path: str) -> None:
    assert untidy(_read(path)) == []


def test_every_function_fits_forty_lines_or_says_why_not() -> None:
    found = [name for path in _python_files() for name in long_functions(path, _read(path))]
    assert sorted(found) == sorted(LONG_FUNCTIONS)
    assert all(LONG_FUNCTIONS.values())


def test_no_file_names_a_machine_or_a_registry() -> None:
    found: dict[str, list[str]] = {}
    for path in _text_files():
        try:
            words = leaks(_read(path))
        except UnicodeDecodeError:
            continue
        if words:
            found[path] = words
    assert found == {}


def test_every_package_folder_is_in_the_wheel() -> None:
    listed = set(tomllib.loads(_read("pyproject.toml"))["tool"]["setuptools"]["packages"])
    packages = {
        ".".join(["outlast", *Path(path).parent.parts])
        for path in _python_files(IMPORTABLE)
        if path.endswith("/__init__.py")
    }
    assert packages <= listed


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ('"""Doc."""\n' + "x = 1\n" * FILE_LINES_MAX, "more than 400 lines"),
        ("x = 1\n", "no module docstring"),
        ('"""Doc."""\n# TODO: later\n', "line 2: unfinished"),
        ('"""Doc."""\n# FIXME(someone) broken\n', "line 2: unfinished"),
        ('"""Doc."""\nx = 1  # noqa\n', "line 2: a check"),
        ('"""Doc."""\nx = 1  # noqa: E501\n', "line 2: a check"),
        ('"""Doc."""\nx = 1  # type: ignore\n', "line 2: a check"),
        ('"""Doc."""\nx = 1  # pyright: ignore[reportAny]\n', "line 2: a check"),
    ],
)
def test_an_untidy_file_is_named(source: str, complaint: str) -> None:
    assert [found.startswith(complaint) for found in untidy(source)] == [True]


@pytest.mark.parametrize(
    "source",
    [
        "",
        '"""Doc."""\n# TODO(issue 3): the listener joins here\n',
        '"""Doc."""\nx = "TODO"\n',
        '"""Doc."""\nx = 1  # noqa: E501, S608 - the table is a constant\n',
        '"""Doc."""\nx = 1  # pyright: ignore[reportAny]  # the library has no types\n',
    ],
)
def test_a_tidy_file_is_left_alone(source: str) -> None:
    assert untidy(source) == []


def test_a_function_of_forty_one_lines_is_named() -> None:
    body = "    x = 1\n" * (FUNCTION_LINES_MAX - 1)
    assert long_functions("a.py", f"@cache\nasync def fits():\n{body}") == []
    assert long_functions("a.py", f"def grew():\n{body}    y = 2\n") == ["a.py::grew"]


@pytest.mark.parametrize("word", LEAKS)
def test_a_leaking_word_is_found(word: str) -> None:
    assert leaks(f"see {word} for more") == [word]


# Run in a bare interpreter. What is foreign is imported first and may do as it likes; then the
# doors are shut and our own modules come in. A breach is raised, so that it names the line.
PROBE = r"""
import importlib, os, sys, threading

root, foreign, ours = sys.argv[1], sys.argv[2].split(), sys.argv[3].split()
for name in foreign:
    try:
        importlib.import_module(name)
    except ImportError:
        pass  # a name inside a module, or an extra that is not installed

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = ("socket.", "subprocess.", "os.mkdir", "os.remove", "os.rename", "os.system", "os.exec",
             "os.fork", "os.posix_spawn", "os.chmod", "os.chown", "os.putenv", "os.kill",
             "shutil.", "tempfile.", "sqlite3.connect")

def guard(event, args):
    if event.startswith(FORBIDDEN) or (event == "open" and (args[2] or 0) & WRITES):
        raise RuntimeError(f"at import: {event} {args!r}")

def asked_by_us():
    frame = sys._getframe(2)
    while frame.f_code.co_filename.endswith(("os.py", "_collections_abc.py", "os>", "abc>")):
        frame = frame.f_back
    name = frame.f_code.co_filename
    return name.startswith(root) and ".venv" not in name

class Closed(type(os.environ)):
    def __getitem__(self, key):
        if asked_by_us():
            raise RuntimeError(f"at import: the environment is asked for {key}")
        return super().__getitem__(key)

def refuse_thread(thread):
    raise RuntimeError("at import: a thread starts")

os.environ.__class__ = Closed
threading.Thread.start = refuse_thread
sys.addaudithook(guard)
for name in ours:
    importlib.import_module(name)
"""


def _foreign(paths: list[str]) -> list[str]:
    """All modules that these files import from elsewhere, `from a import b` as `a` and `a.b`."""
    found: set[str] = set()
    for path in paths:
        for node in ast.walk(ast.parse(_read(path))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return sorted(name for name in found if name.split(".")[0] not in {"outlast", "__future__"})


def probe(root: Path, foreign: list[str], ours: list[str]) -> str:
    """Import `ours` behind shut doors; returns what went wrong, or nothing."""
    words = [str(root), " ".join(foreign), " ".join(ours)]
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROBE, *words],
        env={},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=IMPORT_S_MAX,
        check=False,
    )
    return "" if done.returncode == 0 else done.stderr[-2000:] or "failed without a word"


@pytest.mark.promise("import-does-nothing")
def test_importing_does_nothing_but_define() -> None:
    paths = [path for path in _python_files(IMPORTABLE) if not path.endswith("__main__.py")]
    stems = [path.removesuffix(".py").removesuffix("/__init__") for path in paths]
    ours = ["outlast", *("outlast." + stem.replace("/", ".") for stem in stems)]
    assert probe(ROOT, _foreign(paths), ours) == ""


@pytest.mark.promise("import-does-nothing")
@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("import socket; socket.socket()", "socket.__new__"),
        ("import socket; socket.getaddrinfo('localhost', 80)", "socket.getaddrinfo"),
        ("open('left-behind', 'w')", "open ('left-behind'"),
        ("import os; os.mkdir('left-behind')", "os.mkdir"),
        ("import os; os.environ['DATABASE_URL']", "asked for DATABASE_URL"),
        ("import os; os.getenv('DATABASE_URL')", "asked for DATABASE_URL"),
        ("import subprocess; subprocess.run(['true'])", "subprocess.Popen"),
        ("import threading; threading.Thread(target=print).start()", "a thread starts"),
    ],
)
def test_a_module_that_acts_at_import_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    (tmp_path / "acts.py").write_text(line + "\n", encoding="utf-8")
    assert complaint in probe(tmp_path, ["subprocess", "socket", "threading"], ["acts"])
    assert [file.name for file in tmp_path.iterdir()] == ["acts.py"]
