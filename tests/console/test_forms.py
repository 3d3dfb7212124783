"""Forms out of requested schemas, answers out of what was typed, and links that deceive nobody."""

from typing import Any

import pytest

from outlast.service.console.forms import Form, link_of
from outlast.tests.console.inbox_world import elicitation

COLOURS = [{"const": "#f00", "title": "Red"}, {"const": "#0f0", "title": "Green"}]


def one(schema: dict[str, Any], *, required: bool = False) -> Form:
    return Form(elicitation("?", x=schema, required=["x"] if required else []))


def content(form: Form, *texts: str) -> Any:
    answered = form.accepted({"f.x": texts})
    return answered.errors["x"] if answered.result is None else answered.result["content"]


@pytest.mark.parametrize(
    ("schema", "texts", "value"),
    [
        ({"type": "string"}, ["Ada"], "Ada"),
        ({"type": "string", "maxLength": 900}, ["one\r\ntwo"], "one\ntwo"),
        ({"type": "string", "format": "email"}, ["ada@example.org"], "ada@example.org"),
        ({"type": "string", "format": "date"}, ["2026-07-28"], "2026-07-28"),
        ({"type": "integer", "minimum": 0}, ["7"], 7),
        ({"type": "number"}, ["1.5"], 1.5),
        ({"type": "boolean"}, ["yes"], True),
        ({"type": "boolean"}, ["no"], False),
        ({"type": "string", "enum": ["a", "b"]}, ["1"], "b"),
        ({"type": "string", "oneOf": COLOURS}, ["0"], "#f00"),
        ({"type": "array", "items": {"anyOf": COLOURS}}, ["1", "0"], ["#0f0", "#f00"]),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, ["0"], ["a"]),
    ],
)
def test_each_kind_of_field_is_read_as_its_schema_says(
    schema: dict[str, Any], texts: list[str], value: Any
) -> None:
    assert content(one(schema), *texts) == {"x": value}


@pytest.mark.parametrize(
    ("schema", "texts", "error"),
    [
        ({"type": "string", "minLength": 3}, ["ab"], "Give at least 3 characters"),
        ({"type": "string", "maxLength": 3}, ["abcd"], "Give at most 3 characters"),
        ({"type": "string", "format": "email"}, ["ada"], "Give an e-mail address"),
        ({"type": "string", "format": "uri"}, ["nowhere"], "Give a URL"),
        ({"type": "string", "format": "date"}, ["28.7."], "Give a date"),
        ({"type": "string", "format": "date-time"}, ["2026-07-28T12:00:00"], "Give the time zone"),
        ({"type": "integer"}, ["1.5"], "'1.5' is not a whole number"),
        ({"type": "integer", "maximum": 9}, ["10"], "Give at most 9"),
        ({"type": "number"}, ["nan"], "Give a number"),
        ({"type": "number"}, ["9" * 4_000], "Give a shorter number"),
        ({"type": "boolean"}, ["maybe"], "Answer yes or no"),
        ({"type": "string", "enum": ["a"]}, ["a"], "Give one of the choices"),
        ({"type": "array", "minItems": 2, "items": {"enum": ["a", "b"]}}, ["0"], "Give at least 2"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, ["7"], "Give one of the choices"),
    ],
)
def test_what_does_not_fit_says_what_would(
    schema: dict[str, Any], texts: list[str], error: str
) -> None:
    assert content(one(schema), *texts).startswith(error)


@pytest.mark.parametrize("texts", [[], [""], ["  "]])
def test_an_empty_field_is_left_out_unless_it_is_needed(texts: list[str]) -> None:
    assert content(one({"type": "string"}), *texts) == {}
    assert content(one({"type": "string"}, required=True), *texts) == "This is needed"


def test_proposed_values_are_filled_in_and_give_way_to_what_was_typed() -> None:
    form = Form(
        elicitation(
            "?",
            name={"type": "string", "default": "Ada"},
            ok={"type": "boolean", "default": True},
            colour={"type": "string", "oneOf": COLOURS, "default": "#0f0"},
            some={"type": "array", "items": {"anyOf": COLOURS}, "default": ["#f00", "#0f0"]},
        )
    )
    name, ok, colour, some = form.controls()
    assert name.value == "Ada"
    assert [choice.is_chosen for choice in ok.choices] == [True, False]
    assert [choice.is_chosen for choice in colour.choices] == [False, True]
    assert [choice.is_chosen for choice in some.choices] == [True, True]
    name, ok, colour, some = form.controls({"f.name": ["Bo"], "f.some": ["0"]})
    assert (name.value, [choice.is_chosen for choice in some.choices]) == ("Bo", [True, False])
    assert not any(choice.is_chosen for choice in (*ok.choices, *colour.choices))


def test_a_field_of_a_server_cannot_pass_for_one_of_ours() -> None:
    form = Form(elicitation("?", csrf={"type": "string"}, action={"type": "string"}))
    assert {control.name for control in form.controls()} == {"f.csrf", "f.action"}


def test_a_required_choice_that_nobody_made_is_no_answer() -> None:
    form = one({"type": "array", "minItems": 1, "items": {"enum": ["a"]}}, required=True)
    assert content(form) == "Give at least 1 choices"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://example.com/a?b#c", "example.com"),
        ("HTTPS://Example.COM:8443/", "Example.COM"),
        ("https://good.example@evil.example/", "evil.example"),
        ("https://evil.example/good.example", "evil.example"),
        ("http://[::1]:8000/x", "::1"),
    ],
)
def test_the_host_that_is_shown_is_the_one_that_is_opened(url: str, host: str) -> None:
    link = link_of(url)
    assert (link.is_safe, link.host, link.url) == (True, host, url)


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "https:///nowhere",
        "https://good.example\\@evil.example/",
        "https://good.example/\u202egpj.exe",
        " https://good.example",
        "https://good.example\t/",
        "https://[broken/",
        "",
    ],
)
def test_what_is_no_plain_web_address_is_shown_and_not_opened(url: str) -> None:
    link = link_of(url)
    assert (link.is_safe, link.url) == (False, url)


def test_a_host_beyond_ascii_is_told_in_full() -> None:
    assert link_of("https://ex\u0430mple.com/").encoded_host == "xn--exmple-4nf.com"


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list", "some/thing"])
def test_what_is_no_question_to_a_person_is_not_answerable(method: str) -> None:
    assert Form({"method": method, "params": {}}).unanswerable


@pytest.mark.parametrize("params", [None, {}, {"requestedSchema": 7}, {"requestedSchema": {}}])
def test_a_request_without_fields_is_a_form_with_none(params: Any) -> None:
    form = Form({"method": "elicitation/create", "params": params})
    assert (form.controls(), form.unanswerable) == ([], "")
    assert form.accepted({}).result == {"action": "accept", "content": {}}
