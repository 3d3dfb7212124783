"""Commands that open the store take the file that the service takes, whoever it lets in."""

import os
from pathlib import Path

import anyio
import pytest

from outlast.tests.support.serving import OUTLAST

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
FILE = """
[server]
host = "0.0.0.0"
encrypt = "off"
[identity]
resource = "https://tasks.example/mcp"
[[identity.issuers]]
issuer = "https://login.example"
"""


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("db upgrade", 0),
        ("db rebuild", 0),
        ("keys status", 0),
        ("audit verify", 0),
        ("audit export", 0),
        ("webhooks list", 0),
        ("purge --issuer https://login.example --subject nobody --yes", 1),
    ],
)
async def test_a_service_that_only_issuers_open_is_looked_after(
    database_url: str, tmp_path: Path, command: str, code: int
) -> None:
    file = tmp_path / "outlast.toml"
    file.write_text(FILE)
    with anyio.fail_after(PATIENCE_S):
        done = await anyio.run_process(
            [str(OUTLAST), *command.split(), "--config", str(file)],
            cwd=tmp_path,
            env={**os.environ, "OUTLAST_DATABASE_URL": database_url},
            check=False,
        )
    assert done.returncode == code, done.stderr.decode()
