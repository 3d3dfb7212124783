"""docs/deployment.md: its commands are shell and name what exists; what can be run here is run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from outlast.domain import errors
from outlast.service import config as configuration, secret_files, settings
from outlast.tests.support.deploying import DEPLOY

ROOT = DEPLOY.parents[1]
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
BIN = Path(sys.executable).parent
# Made by the first block of the page, and so not in a clone.
MADE = "ops/deploy/secrets/"


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_block_is_shell(number: int):
    done = subprocess.run(
        ["sh", "-n"], input=BLOCKS[number], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_file_that_a_command_names_is_there():
    named = {name for block in BLOCKS for name in re.findall(r"\bops/[\w./-]+", block)}
    assert named
    for name in named:
        assert name.startswith(MADE) or (ROOT / name).exists(), name


def test_every_service_that_a_command_names_is_in_compose():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    lines = [line for block in BLOCKS for line in block.splitlines() if "compose.yaml" in line]
    one = re.compile(r" (up --detach --no-deps|run|logs) ")
    last = {line.split()[-1] for line in lines if one.search(line)}
    assert last >= {"migrate", "serve-1", "serve-2", "worker-1", "worker-2"}
    assert last <= set(services)


def test_every_value_that_helm_is_given_is_one_of_the_chart():
    values = yaml.safe_load((DEPLOY / "chart" / "values.yaml").read_text())
    given = re.findall(r"--set(?:-file)? ([\w.]+)=", "\n".join(BLOCKS))
    assert given
    for path in given:
        place = values
        for part in path.split("."):
            assert part in place, path
            place = place[part]


@pytest.mark.promise("secrets-come-from-files")
def test_the_secrets_that_the_page_makes_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    [making] = [block for block in BLOCKS if "secrets/postgres_password" in block]
    folder = tmp_path / "ops" / "deploy"
    shutil.copytree(DEPLOY, folder, ignore=shutil.ignore_patterns("chart"))
    monkeypatch.setenv("PATH", str(BIN), prepend=":")
    done = subprocess.run(
        ["sh", "-eu", "-c", making], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for name in compose["secrets"]:
        assert (folder / "secrets" / name).read_text().strip(), name
    for name in secret_files.NAMES:
        if name in compose["secrets"]:
            monkeypatch.setenv(secret_files.variable_of(name), str(folder / "secrets" / name))
    config = configuration.read(DEPLOY / "outlast.toml", {})
    loaded = settings.load({"host": "0.0.0.0"}, config.server)
    assert loaded.seals
    assert loaded.admin_token
    assert "[[tokens]]" in (folder / "secrets" / "tokens").read_text()


def test_what_the_page_says_of_a_service_without_data_keys_is_so():
    with pytest.raises(errors.ConfigurationError, match="OUTLAST_DATA_KEYS"):
        settings.load({"host": "0.0.0.0"}, {"tokens_file": "tokens"})
