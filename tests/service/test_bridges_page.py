"""docs/bridges.md: its configuration is read as it stands."""

import re
from pathlib import Path

from outlast.service import config

PAGE = (Path(__file__).parents[2] / "docs" / "bridges.md").read_text(encoding="utf-8")


def test_each_configuration_of_the_page_is_valid(tmp_path: Path):
    status, tasks = re.findall(r"```toml\n(.+?)```", PAGE, re.DOTALL)
    file = tmp_path / "outlast.toml"
    file.write_text(status)
    assert config.read(file).policies.of("submit_job").bridge is not None
    file.write_text(tasks)
    assert config.read(file).upstreams["reports"].makes_tasks
