"""Secrets that a file holds."""

from pathlib import Path

import pytest

from outlast.domain import errors
from outlast.service import secret_files, settings

GIVEN = {
    "database_url": "postgresql://somebody@somewhere/store",
    "data_keys": "first:" + "A" * 43,
    "secret_key": "s" * 40,
    "admin_token": "t" * 40,
    "webhook_signing_key": "whsk_" + "k" * 44,
    "audit_signing_key": "a" * 43,
}

pytestmark = pytest.mark.promise("secrets-come-from-files")


@pytest.mark.parametrize("name", secret_files.NAMES)
def test_each_secret_can_be_in_a_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / name
    file.write_text(GIVEN[name] + "\n")
    monkeypatch.setenv(f"OUTLAST_{name.upper()}_FILE", str(file))
    found = getattr(settings.load({}, {name: "overruled" * 8}), name)
    assert found == ([GIVEN[name]] if name == "data_keys" else GIVEN[name])


def test_a_flag_wins_over_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "url"
    file.write_text("postgresql://of-the-file")
    monkeypatch.setenv("OUTLAST_DATABASE_URL_FILE", str(file))
    assert settings.load({"database_url": "postgresql://flag"}, {}).database_url == (
        "postgresql://flag"
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b"\n", "empty"), (b"\xff", "not text"), (b"x" * 70_000, "too long")],
    ids=["missing", "empty", "binary", "long"],
)
def test_a_file_that_cannot_be_used_is_named_and_not_shown(
    content: bytes | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("OUTLAST_SECRET_KEY_FILE", str(file))
    with pytest.raises(errors.ConfigurationError, match=reason) as raised:
        settings.load({}, {})
    assert "OUTLAST_SECRET_KEY_FILE" in str(raised.value)
    assert "xxx" not in str(raised.value)


def test_a_value_that_is_not_right_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "key"
    file.write_text("too-short-to-be-a-key")
    monkeypatch.setenv("OUTLAST_SECRET_KEY_FILE", str(file))
    with pytest.raises(errors.ConfigurationError, match="secret_key") as raised:
        settings.load({}, {})
    assert "too-short" not in str(raised.value)


def test_the_variable_and_its_file_are_not_given_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OUTLAST_SECRET_KEY", "s" * 40)
    monkeypatch.setenv("OUTLAST_SECRET_KEY_FILE", str(tmp_path))
    with pytest.raises(errors.ConfigurationError, match="not both"):
        settings.load({}, {})
