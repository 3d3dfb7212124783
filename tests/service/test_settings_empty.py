"""An empty variable, as `${X:-}` of a compose file leaves one, defeats no secret."""

from pathlib import Path

import pytest

from outlast.domain import errors
from outlast.service import secret_files, settings
from outlast.tests.service.test_secret_files import GIVEN

pytestmark = pytest.mark.promise("secrets-come-from-files")


@pytest.mark.parametrize("name", secret_files.NAMES)
def test_an_empty_variable_takes_nothing_away_from_its_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / name
    file.write_text(GIVEN[name])
    monkeypatch.setenv(f"OUTLAST_{name.upper()}", "")
    monkeypatch.setenv(f"OUTLAST_{name.upper()}_FILE", str(file))
    chosen = settings.load({}, {})
    assert getattr(chosen, name) == ([GIVEN[name]] if name == "data_keys" else GIVEN[name])
    assert chosen.seals == (name == "data_keys")


@pytest.mark.parametrize("name", settings.MAY_BE_EMPTY)
def test_an_empty_variable_takes_nothing_away_from_the_table(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    table = {name: [GIVEN[name]] if name == "data_keys" else GIVEN[name]}
    monkeypatch.setenv(f"OUTLAST_{name.upper()}", "")
    assert getattr(settings.load({}, table), name) == table[name]
    assert not getattr(settings.load({}, {}), name)


@pytest.mark.parametrize("name", ["database_url", "secret_key", "admin_token"])
def test_where_another_would_silently_take_its_place_an_empty_variable_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(f"OUTLAST_{name.upper()}", "")
    with pytest.raises(errors.ConfigurationError, match=name):
        settings.load({}, {name: GIVEN[name]})


def test_encrypt_on_is_not_content_with_an_empty_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTLAST_DATA_KEYS", "")
    with pytest.raises(errors.ConfigurationError, match="no data_keys"):
        settings.load({"encrypt": "on"}, {})


@pytest.mark.parametrize("variable", ["OUTLAST_DATA_KEYS", "outlast_data_keys"])
def test_the_variable_and_its_file_are_not_given_both_however_it_is_written(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "keys"
    file.write_text(GIVEN["data_keys"])
    monkeypatch.setenv(variable, "second:" + "B" * 43)
    monkeypatch.setenv("OUTLAST_DATA_KEYS_FILE", str(file))
    with pytest.raises(errors.ConfigurationError, match="not both"):
        settings.load({}, {})
