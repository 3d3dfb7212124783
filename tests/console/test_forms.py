"""Forms out of requested schemas, answers out of what was typed, and links that deceive nobody."""

from typing import Any

import pytest

from outlast.service.console.forms import Control, Form, link_of
from outlast.tests.console.inbox_world import elicitation

COLOURS = [{"const": "#f00", "title": "Red"}, {"const": "#0f0", "title": "Green"}]


def one(schema: dict[str, Any], *, required: bool = False) -> Form:
    return Form(elicitation("?", x=schema, required=["x"] if required else []))


def control(schema: dict[str, Any]) -> Control:
    (only,) = one(schema).controls()
    return only


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


HUGE = 10**400
INFINITE = float("inf")


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": HUGE, "default": 5},
        {"maximum": -HUGE, "default": 5},
        {"default": HUGE},
        {"default": -INFINITE, "minimum": INFINITE},
        {"maximum": float("nan"), "default": 5.5},
        {"minimum": True, "maximum": "many"},
    ],
)
def test_a_number_with_any_bounds_has_a_page_and_an_answer_or_an_error(
    kind: str, schema: dict[str, Any]
) -> None:
    form = one({"type": kind, **schema})
    (shown,) = form.controls()
    assert len(shown.hint) < 100
    assert not {"min", "max"} & shown.attributes.keys()
    is_bound = HUGE in schema.values() or -HUGE in schema.values() or INFINITE in schema.values()
    told = content(form, "7")
    assert told == {"x": 7} or (is_bound and told.startswith("Give at ") and len(told) < 100)


@pytest.mark.parametrize("bound", [HUGE, INFINITE])
def test_a_text_with_any_bounds_has_a_page_and_an_answer_or_an_error(bound: float) -> None:
    schema = {"type": "string", "minLength": bound, "maxLength": bound, "default": "x"}
    assert not {"minlength", "maxlength"} & control(schema).attributes.keys()
    assert content(one(schema), "x").startswith("Give at least ")


@pytest.mark.parametrize(
    ("schema", "attributes"),
    [
        ({"type": "integer", "minimum": 0.5, "maximum": 9.5}, {"min": "1", "max": "9"}),
        ({"type": "integer", "minimum": -0.5}, {"min": "0"}),
        ({"type": "integer", "maximum": 7654321.0}, {"max": "7654321"}),
        ({"type": "number", "minimum": 1234567.25}, {"min": "1234567.25"}),
        ({"type": "number", "minimum": 1234567.0}, {"min": "1234567"}),
        ({"type": "number", "maximum": 1e300}, {"max": "1e+300"}),
        ({"type": "string", "maxLength": 1000000.0}, {"maxlength": "1000000"}),
        ({"type": "string", "minLength": 1.5}, {"minlength": "2"}),
    ],
)
def test_a_bound_is_told_to_the_browser_to_its_last_digit(
    schema: dict[str, Any], attributes: dict[str, str]
) -> None:
    shown = control(schema)
    told = {name: shown.attributes[name] for name in shown.attributes if name not in SHAPE}
    assert told == attributes
    assert all(bound in shown.hint for bound in attributes.values())


SHAPE = {"type", "step"}


@pytest.mark.parametrize(
    ("schema", "text", "error"),
    [
        ({"type": "integer", "minimum": 1234567}, "5", "Give at least 1234567"),
        ({"type": "integer", "minimum": 1234566.5}, "5", "Give at least 1234567"),
        ({"type": "integer", "maximum": 16777215}, "16777216", "Give at most 16777215"),
        ({"type": "number", "minimum": 1234567.25}, "5", "Give at least 1234567.25"),
        ({"type": "string", "minLength": 1234567}, "x", "Give at least 1234567 characters"),
    ],
)
def test_a_bound_is_told_to_the_person_to_its_last_digit(
    schema: dict[str, Any], text: str, error: str
) -> None:
    assert content(one(schema), text) == error


def test_a_whole_number_that_is_proposed_can_be_sent_as_it_stands() -> None:
    schema = {"type": "integer", "default": 5.0}
    assert content(one(schema), control(schema).value) == {"x": 5}


def test_how_many_may_be_chosen_is_told_in_whole_numbers() -> None:
    some = {"type": "array", "items": {"enum": ["a", "b"]}}
    assert control({**some, "minItems": 1.0, "maxItems": 2.0}).hint == "at least 1, at most 2"
    assert content(one({**some, "minItems": 2.0}), "0") == "Give at least 2 choices"


@pytest.mark.parametrize("text", ["one\ntwo", "\none", "one\r\ntwo"])
def test_a_text_of_several_lines_gets_a_box_that_keeps_them(text: str) -> None:
    plain = {"type": "string"}
    for schema in (plain, {**plain, "maxLength": 90}, {**plain, "format": "markdown"}):
        assert control({**schema, "default": text}).shape == "box"
        assert control({**schema, "default": "one"}).shape == "line"
        (typed,) = one(schema).controls({"f.x": [text]})
        assert (typed.shape, typed.value) == ("box", text)


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
