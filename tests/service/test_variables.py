"""`${NAME}` in `outlast.toml`: secrets come from the environment, and are shown by nothing."""

import subprocess
from pathlib import Path

import pytest

from outlast.domain import errors
from outlast.service import config, variables
from outlast.tests.support.serving import OUTLAST

pytestmark = pytest.mark.promise("secrets-stay-in-the-environment")

SECRET = "s3cret-value"
HERE = {"TOKEN": SECRET, "EMPTY": "", "TWO": "a\nb", "NESTED": "${TOKEN}"}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("Bearer ${TOKEN}", f"Bearer {SECRET}"),
        ("${TOKEN}${TOKEN}", SECRET * 2),
        ("$${TOKEN}", "${TOKEN}"),
        ("$TOKEN $ {TOKEN} ${} ${1} ${a-b}", "$TOKEN $ {TOKEN} ${} ${1} ${a-b}"),
        ("${NESTED}", "${TOKEN}"),
        ("", ""),
    ],
)
def test_what_is_named_is_filled_in_and_nothing_else(text: str, filled: str):
    assert variables.filled(text, HERE) == filled


@pytest.mark.parametrize(("name", "said"), [("NONE", "has no NONE"), ("EMPTY", "has no EMPTY")])
def test_a_variable_that_is_not_there_is_named(name: str, said: str):
    with pytest.raises(variables.NotThere, match=said):
        variables.filled(f"${{{name}}}", HERE)


def test_a_value_that_could_end_a_header_is_refused_and_not_shown():
    with pytest.raises(variables.NotThere, match="TWO holds a line break") as caught:
        variables.filled("Bearer ${TWO}", HERE)
    assert "a\nb" not in str(caught.value)


def test_headers_and_env_are_filled_in_with_their_line_in_a_mistake():
    text = (
        '[upstreams.far]\nurl = "https://mcp.example.com/mcp"\n'
        'headers = { Authorization = "Bearer ${TOKEN}" }\n'
        '[upstreams.near]\ncommand = ["x", "${TOKEN}"]\nenv = { KEY = "${TOKEN}" }\n'
    )
    parsed = config.parse(text, "outlast.toml", HERE)
    far, near = parsed.upstreams["far"], parsed.upstreams["near"]
    assert far.headers == {"Authorization": f"Bearer {SECRET}"}
    assert near.env == {"KEY": SECRET}
    assert near.command == ["x", "${TOKEN}"]  # a command line is seen by everybody
    assert SECRET not in repr(parsed)
    with pytest.raises(errors.ConfigurationError) as caught:
        config.parse(text, "outlast.toml", {})
    said = "outlast.toml:3: upstreams.far.headers.Authorization: the environment has no TOKEN"
    assert str(caught.value).startswith(said)


def test_who_reaches_no_upstream_needs_none_of_their_secrets():
    text = '[upstreams.near]\ncommand = ["x"]\nenv = { KEY = "${TOKEN}" }\n'
    assert config.parse(text, "outlast.toml").upstreams["near"].env == {"KEY": "${TOKEN}"}


def test_the_command_names_the_line_and_the_variable(tmp_path: Path):
    file = tmp_path / "outlast.toml"
    file.write_text('[upstreams.near]\ncommand = ["x"]\nenv = { KEY = "${NOT_SET_HERE}" }\n')
    ran = subprocess.run(
        [OUTLAST, "stdio", "--config", str(file)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    said = f"{file}:3: upstreams.near.env.KEY: the environment has no NOT_SET_HERE"
    assert said in ran.stderr
