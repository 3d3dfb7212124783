"""The manifest and the tests, compared both ways. Tests are read as text, none is imported."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from outlast.tests.promises import PROMISES

TESTS = Path(__file__).resolve().parent
# A test that does not run, or is expected to fail, proves nothing.
DOES_NOT_COUNT = frozenset({"skip", "skipif", "xfail"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Claim:
    """A marker: which promise, where, and whether what it marks can prove anything."""

    promise: str
    place: str
    counts: bool


def claims(path: str, source: str) -> list[Claim]:
    """Every promise marker in a file. One that marks no test, or names none, does not count."""
    tree = ast.parse(source, path)
    holders = dict(_marks_of_tests(tree))
    found: list[Claim] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _mark(node.func) == "promise":
            named = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            name = str(named[0]) if named else ""
            runs = Path(path).name.startswith("test_") and holders.get(node, False)
            found.append(Claim(name, f"{path}:{node.lineno}", counts=runs))
    return found


def complaints(promised: list[str], claimed: list[Claim]) -> list[str]:
    """What is wrong between the manifest and the markers, one line each."""
    proven = {claim.promise for claim in claimed if claim.counts}
    found = [f"{name}: no test proves it" for name in promised if name not in proven]
    found += [f"{name}: promised twice" for name in set(promised) if promised.count(name) > 1]
    for claim in claimed:
        if claim.promise not in promised:
            found.append(f"{claim.place}: {claim.promise or 'a computed name'} is not promised")
        elif not claim.counts:
            found.append(f"{claim.place}: {claim.promise} is claimed by no test that runs")
    return sorted(found)


def _marks_of_tests(tree: ast.Module) -> Iterator[tuple[ast.Call, bool]]:
    """Each call inside a mark of a test, of a class of tests or of the file; True if it counts."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark":
            yield from _calls([statement.value])
        elif isinstance(statement, ast.ClassDef) and statement.name.startswith("Test"):
            yield from _calls(statement.decorator_list)
            yield from _marks_of_functions(statement.body)
    yield from _marks_of_functions(tree.body)


def _marks_of_functions(body: list[ast.stmt]) -> Iterator[tuple[ast.Call, bool]]:
    for node in body:
        if isinstance(node, Function) and node.name.startswith("test"):
            yield from _calls(node.decorator_list)


def _calls(marks: list[ast.expr]) -> Iterator[tuple[ast.Call, bool]]:
    inside = [node for mark in marks for node in ast.walk(mark)]
    counts = not any(_mark(node) in DOES_NOT_COUNT for node in inside)
    yield from ((node, counts) for node in inside if isinstance(node, ast.Call))


def _mark(node: ast.AST) -> str | None:
    """`name` of `pytest.mark.name`."""
    match node:
        case ast.Attribute(ast.Attribute(ast.Name("pytest"), "mark"), name):
            return name
        case _:
            return None


def test_every_promise_has_a_test_and_every_marker_a_promise() -> None:
    claimed = [
        claim
        for file in sorted(TESTS.rglob("*.py"))
        if "node_modules" not in file.parts
        for claim in claims(file.relative_to(TESTS).as_posix(), file.read_text(encoding="utf-8"))
    ]
    assert complaints([promise.name for promise in PROMISES], claimed) == []


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_a_promise_is_a_slug_a_sentence_and_a_source(promise: object) -> None:
    name, text, source = (getattr(promise, field) for field in ("name", "text", "source"))
    assert name.replace("-", "").isalnum()
    assert name.islower()
    assert text.endswith(".")
    assert source


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.promise('kept')\ndef test_it(): ...",
        "@pytest.mark.anyio\n@pytest.mark.promise('kept')\nasync def test_it(): ...",
        "pytestmark = [pytest.mark.anyio, pytest.mark.promise('kept')]\ndef test_it(): ...",
        "@pytest.mark.promise('kept')\nclass TestIt:\n    def test_it(self): ...",
        "class TestIt:\n    @pytest.mark.promise('kept')\n    def test_it(self): ...",
        "@pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.promise('kept'))])\n"
        "def test_it(a): ...",
    ],
)
def test_a_marked_test_proves_its_promise(source: str) -> None:
    assert complaints(["kept"], claims("a/test_a.py", source)) == []


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("test_a.py", "def test_it(): ...", ["kept: no test proves it"]),
        (
            "test_a.py",
            "@pytest.mark.promise('kept')\n@pytest.mark.promise('new')\ndef test_it(): ...",
            ["test_a.py:2: new is not promised"],
        ),
        (
            "test_a.py",
            "@pytest.mark.promise(NAME)\ndef test_it(): ...",
            ["kept: no test proves it", "test_a.py:1: a computed name is not promised"],
        ),
        (
            "test_a.py",
            "@pytest.mark.skip\n@pytest.mark.promise('kept')\ndef test_it(): ...",
            ["kept: no test proves it", "test_a.py:2: kept is claimed by no test that runs"],
        ),
        (
            "test_a.py",
            "@pytest.mark.promise('kept')\ndef helper(): ...",
            ["kept: no test proves it", "test_a.py:1: kept is claimed by no test that runs"],
        ),
        (
            "support.py",
            "@pytest.mark.promise('kept')\ndef test_it(): ...",
            ["kept: no test proves it", "support.py:1: kept is claimed by no test that runs"],
        ),
    ],
)
def test_a_gap_between_manifest_and_tests_is_named(
    path: str, source: str, complaint: list[str]
) -> None:
    assert complaints(["kept"], claims(path, source)) == complaint


def test_a_promise_given_twice_is_named() -> None:
    proof = [Claim("kept", "test_a.py:1", counts=True)]
    assert complaints(["kept", "kept"], proof) == ["kept: promised twice"]
