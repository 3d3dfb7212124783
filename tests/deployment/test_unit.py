"""The systemd unit, judged by systemd itself."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from outlast.service import secret_files, settings
from outlast.tests.support.deploying import DEPLOY

UNIT = DEPLOY / "outlast.service"
EXPOSURE_MAX = 30  # of 100; a service without any of these settings has 96
AROUND_S = 15


@pytest.fixture
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("there is no systemd-analyze")
    return found


def unit_in(folder: Path, text: str) -> Path:
    """The unit with a program that exists here, for whether it does is a thing of its machine."""
    folder.mkdir(exist_ok=True)
    file = folder / "outlast.service"
    file.write_text(text.replace("/opt/outlast/bin/outlast", "/bin/true"))
    return file


def verify(analyze: str, file: Path) -> tuple[int, str]:
    done = subprocess.run(
        [analyze, "verify", "--man=no", "--recursive-errors=no", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_systemd_accepts_it_and_would_refuse_a_broken_one(analyze: str, tmp_path: Path):
    text = UNIT.read_text()
    status, said = verify(analyze, unit_in(tmp_path / "right", text))
    assert status == 0, said
    assert "outlast.service" not in said, said
    for right, wrong in (("Type=exec", "Type=exce"), ("ProtectSystem=", "ProtectSytem=")):
        _, said = verify(analyze, unit_in(tmp_path / "wrong", text.replace(right, wrong)))
        assert "outlast.service" in said, wrong


def test_systemd_finds_it_well_protected(analyze: str, tmp_path: Path):
    def is_protected(text: str) -> bool:
        command = [analyze, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}"]
        file = unit_in(tmp_path / "unit", text)
        done = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
        assert "outlast.service" in done.stdout, done.stderr
        return done.returncode == 0

    text = UNIT.read_text()
    assert is_protected(text)
    shields = r"^(Protect|Private|Restrict|System|Capab|NoNew|Dynamic).*\n"
    bare = re.sub(shields, "", text, flags=re.MULTILINE)
    assert not is_protected(bare)


def test_its_secrets_are_credentials_and_its_drain_has_its_time():
    text = UNIT.read_text()
    given = dict(re.findall(r"^Environment=(\w+)=%d/(\w+)$", text, re.MULTILINE))
    loaded = dict(re.findall(r"^LoadCredential=(\w+):(\S+)$", text, re.MULTILINE))
    assert set(given.values()) == set(loaded)
    known = {secret_files.variable_of(name) for name in secret_files.NAMES}
    assert set(given) <= known | {"OUTLAST_TOKENS_FILE"}
    [stop_s] = re.findall(r"^TimeoutStopSec=(\d+)s$", text, re.MULTILINE)
    assert int(stop_s) >= settings.load({}, {}).drain_s + AROUND_S
    assert "DynamicUser=yes" in text
    assert "KillMode=mixed" in text
