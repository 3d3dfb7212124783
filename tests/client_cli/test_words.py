"""Words of the command line become arguments; what a server says becomes harmless text."""

from pathlib import Path
from typing import Any

import pytest

from outlast.domain.errors import ConfigurationError
from outlast.service.cli.client import arguments, options, outcomes, tools
from outlast.service.cli.client.text import line, plain

SCHEMA: dict[str, Any] = {
    "properties": {
        "name": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "dry": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"type": ["integer", "string"]},
        "stage": {"$ref": "#/$defs/Stage"},
        "level": {"enum": ["1", "2"]},
        "any": {},
    },
    "required": ["name"],
    "$defs": {"Stage": {"type": "object"}},
}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["name=5"], {"name": "5"}),
        (["name=a=b"], {"name": "a=b"}),
        (["name="], {"name": ""}),
        (["count=5"], {"count": 5}),
        (["ratio=5", "ratio=2.5"], {"ratio": 2.5}),
        (["dry=true"], {"dry": True}),
        (["dry=no"], {"dry": False}),
        (["tags=a", "tags=b,c"], {"tags": ["a", "b,c"]}),
        (['tags:=["a"]', "tags=b"], {"tags": ["a", "b"]}),
        (['tags=["a","b"]'], {"tags": ["a", "b"]}),
        (["sizes=1", "sizes=2"], {"sizes": [1, 2]}),
        (["sizes=null"], {"sizes": None}),
        (["limit=null"], {"limit": None}),
        (["limit=7"], {"limit": 7}),
        (["either=7"], {"either": 7}),
        (["either=seven"], {"either": "seven"}),
        (['stage={"run": "true"}'], {"stage": {"run": "true"}}),
        (["level=1"], {"level": "1"}),
        (["any=7"], {"any": 7}),
        (["any=seven"], {"any": "seven"}),
        (["name:=5"], {"name": 5}),
    ],
)
def test_words_are_typed_by_the_schema(words: list[str], found: dict[str, Any]):
    assert arguments.typed(arguments.pairs_of(words), SCHEMA) == found


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["count=many"], "count: 'many' is no integer"),
        (["count=1.5"], "is no integer"),
        (["ratio=NaN"], "is no number"),
        (["dry=perhaps"], "is no boolean"),
        (["sizes=a"], "is no integer"),
        (["stage=[]"], "is no object"),
        (["nmae=x"], "takes no 'nmae'; did you mean 'name'"),
        (["name:={"], "name: "),
        (["tags:=5", "tags=a"], "tags: 'a' follows what is no list"),
        (["sizes=null", "sizes=1"], "sizes: '1' follows what is no list"),
        (["name"], "'name' is no key=value"),
        (["=x"], "is no key=value"),
    ],
)
def test_words_that_do_not_fit_are_named(words: list[str], complaint: str):
    with pytest.raises(ConfigurationError, match=complaint):
        arguments.typed(arguments.pairs_of(words), SCHEMA)


def test_a_schema_that_allows_others_takes_them_and_one_that_says_nothing_takes_all():
    assert arguments.typed([("x", "1")], {**SCHEMA, "additionalProperties": True}) == {"x": 1}
    assert arguments.typed([("x", "1")], {}) == {"x": 1}
    with pytest.raises(ConfigurationError, match="takes no 'x'"):
        arguments.typed([("x", "1")], {"properties": {}, "additionalProperties": False})


def test_a_schema_that_refers_to_itself_ends():
    loop = {"properties": {"a": {"$ref": "#/properties/a"}}}
    assert arguments.typed([("a", "1")], loop) == {"a": 1}


def test_what_is_missing_is_told_with_the_usage():
    assert arguments.missing({"count": 1}, SCHEMA) == ["name"]
    told = arguments.usage("build", {"properties": {"n": {"type": "integer"}, "m": {}}})
    assert told == "outlast call build [n=integer] [m=value]"


def test_a_json_object_comes_from_the_option_or_from_its_file(tmp_path: Path):
    file = tmp_path / "call.json"
    file.write_text('{"a": [1]}')
    assert arguments.json_object(f"@{file}", "--arguments") == {"a": [1]}
    assert arguments.json_object('{"b": null}', "--arguments") == {"b": None}
    for wrong in ("[1]", "{", f"@{tmp_path / 'none.json'}"):
        with pytest.raises(ConfigurationError, match="--arguments"):
            arguments.json_object(wrong, "--arguments")


@pytest.mark.promise("servers-cannot-control-the-terminal")
@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("plain\ttext\nas it is: äöü ✓", "plain\ttext\nas it is: äöü ✓"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;cGFzdGU=\x07", ""),
        ("\x1bP+q544e\x1b\\x", "x"),
        ("\x9b31mred", "red"),
        ("\x9d0;title\x9cafter", "after"),
        ("a\x1b", "a"),
        ("\x1b(0lqk", "lqk"),
        ("over\rwritten", "overwritten"),
        ("two\r\nlines", "two\nlines"),
        ("\x07\x08\x00bell", "bell"),
        ("abc\u202egpj.exe", "abcgpj.exe"),
        ("lone \ud83d", "lone "),
    ],
)
def test_nothing_that_a_server_says_can_control_a_terminal(said: str, shown: str):
    assert plain(said) == shown


def test_a_name_of_the_servers_in_a_complaint_is_made_harmless_too(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(options.logs, "configure", lambda _level: None)  # the process's own

    async def complaining() -> int:
        tools.named([{"name": "\x1b[2Jcount"}], "cuont")
        return 0

    with pytest.raises(ConfigurationError) as caught:
        options.run(complaining())
    assert str(caught.value) == "the server has no tool 'cuont'; it has count"


def test_a_long_text_is_cut_off_and_a_line_stays_one_line():
    assert plain("x" * 200_000).endswith("cut off; --json shows all of it")
    assert line("a\n b\t c") == "a b c"
    assert line("x" * 600) == "x" * 499 + "…"


@pytest.mark.parametrize(
    ("message", "amount"),
    [
        ("3 of 7", (3.0, 7.0)),
        ("uploading 3/7 files", (3.0, 7.0)),
        ("45% done", (45.0, 100.0)),
        ("0.5 of 2", (0.5, 2.0)),
        ("9 of 7", None),
        ("0 of 0", None),
        ("step 3", None),
        ("2026/07/28", None),
        ("", None),
    ],
)
def test_an_amount_is_read_out_of_a_message_only_where_it_is_one(message: str, amount: Any):
    assert outcomes.amount(message) == amount


def test_a_result_is_shown_whatever_its_blocks_are():
    blocks = [
        {"type": "text", "text": "one\x1b[2J"},
        {"type": "image", "mimeType": "image/png", "data": "AAAA"},
        {"type": "resource_link", "name": "log", "uri": "file:///log"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAAA"}},
        "no block",
    ]
    shown = outcomes.shown({"content": blocks})
    parts = ["one", "[image image/png, 3 bytes]", "[log: file:///log]", "inside"]
    assert shown.splitlines()[:5] == [*parts, "[resource file:///b]"]
    assert outcomes.shown({"content": [], "structuredContent": {"a": 1}}) == '{\n  "a": 1\n}'
    assert outcomes.shown({}) == ""
