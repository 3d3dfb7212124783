"""yamllint over what is YAML here. The chart's templates are not, before they are rendered."""

import subprocess
import sys
from pathlib import Path

import pytest

from outlast.tests.support.deploying import DEPLOY

FILES = ("compose.yaml", "chart/Chart.yaml", "chart/values.yaml")


def lint(file: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "yamllint", "--strict", "-c", str(DEPLOY / ".yamllint")]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", FILES)
def test_the_linter_finds_nothing(name: str):
    status, said = lint(DEPLOY / name)
    assert status == 0, said


def test_the_linter_would_find_a_key_that_is_there_twice(tmp_path: Path):
    file = tmp_path / "twice.yaml"
    file.write_text("one: 1\none: 2\n")
    status, said = lint(file)
    assert status != 0
    assert "duplication" in said
