"""docs/configuration.md is what the settings code says."""

import subprocess
import sys
from pathlib import Path

import pytest

from outlast.service import settings

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "ops" / "reference" / "configuration.py"
PAGE = ROOT / "docs" / "configuration.md"

pytestmark = pytest.mark.promise("settings-are-documented")


def test_the_page_is_in_step_with_the_code():
    """When this fails: `make docs`; a setting that nothing explains is named."""
    command = [sys.executable, str(SCRIPT), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or "run `make docs`"


def test_the_page_has_each_setting_of_the_process_and_its_variable():
    text = PAGE.read_text(encoding="utf-8")
    for name in settings.Fields.model_fields:
        assert f"| `{name}` | `OUTLAST_{name.upper()}` |" in text
