"""What is typed into an elicitation's form becomes what its schema wants, or is asked again."""

from typing import Any

import pytest

from outlast.service import forms
from outlast.service.forms import Kind, Unfit

COLOURS = [{"const": "#f00", "title": "Red"}, {"const": "#0f0", "title": "Green"}]


def only(part: dict[str, Any], *, required: bool = True) -> forms.Field:
    names = ["it"] if required else []
    [field] = forms.fields_of({"properties": {"it": part}, "required": names})
    return field


@pytest.mark.parametrize(
    ("part", "text", "value"),
    [
        ({"type": "string"}, "Ada", "Ada"),
        ({"type": "string"}, "007", "007"),
        ({"type": "string", "format": "email"}, "ada@example.org", "ada@example.org"),
        ({"type": "string", "format": "uri"}, "https://example.org/a", "https://example.org/a"),
        ({"type": "string", "format": "date"}, "2026-07-28", "2026-07-28"),
        ({"type": "string", "format": "date-time"}, "2026-07-28T12:00:00Z", "2026-07-28T12:00:00Z"),
        ({"type": "integer"}, "42", 42),
        ({"type": "number"}, "42", 42),
        ({"type": "number"}, "-0.5", -0.5),
        ({"type": "boolean"}, "yes", True),
        ({"type": "boolean"}, "N", False),
        ({"type": "boolean"}, "true", True),
        ({"type": "string", "enum": ["eu", "us"]}, "us", "us"),
        ({"type": "string", "enum": ["eu", "us"]}, "1", "eu"),
        ({"type": "string", "enum": ["2", "1"]}, "1", "1"),
        ({"type": "string", "enum": ["e"], "enumNames": ["Europe"]}, "europe", "e"),
        ({"type": "string", "oneOf": COLOURS}, "Red", "#f00"),
        ({"type": "string", "oneOf": COLOURS}, "2", "#0f0"),
        ({"type": "array", "items": {"enum": ["a", "b", "c"]}}, "c, a,c", ["c", "a"]),
        ({"type": "array", "items": {"anyOf": COLOURS}}, "green", ["#0f0"]),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", 3),
        ({"type": ["string", "null"]}, "x", "x"),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
    ],
)
def test_a_text_becomes_the_value_that_the_schema_wants(
    part: dict[str, Any], text: str, value: Any
):
    found = forms.parse(only(part), text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("part", "text", "complaint"),
    [
        ({"type": "string", "minLength": 3}, "ab", "at least 3 characters"),
        ({"type": "string", "maxLength": 3}, "abcd", "at most 3 characters"),
        ({"type": "string", "format": "email"}, "ada", "e-mail"),
        ({"type": "string", "format": "uri"}, "example.org", "URL"),
        ({"type": "string", "format": "uri"}, "http://[", "uri"),
        ({"type": "string", "format": "date"}, "28.7.2026", "date"),
        ({"type": "string", "format": "date-time"}, "2026-07-28T12:00:00", "time zone"),
        ({"type": "integer"}, "1.5", "whole number"),
        ({"type": "integer", "minimum": 1}, "0", "at least 1"),
        ({"type": "number", "maximum": 1}, "1.5", "at most 1"),
        ({"type": "number"}, "nan", "a number"),
        ({"type": "number"}, "many", "not a number"),
        ({"type": "boolean"}, "maybe", "yes or no"),
        ({"type": "string", "enum": ["eu", "us"]}, "3", "none of the choices"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, "a, z", "none of the choices"),
        ({"type": "array", "minItems": 2, "items": {"enum": ["a", "b"]}}, "a", "at least 2"),
        ({"type": "array", "maxItems": 1, "items": {"enum": ["a", "b"]}}, "a,b", "at most 1"),
        ({"type": "object"}, "{", "JSON"),
    ],
)
def test_a_text_that_does_not_fit_is_refused_with_what_is_wanted(
    part: dict[str, Any], text: str, complaint: str
):
    with pytest.raises(Unfit, match=complaint):
        forms.parse(only(part), text)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({}, Kind.OTHER),
        ("no schema", Kind.OTHER),
        ({"type": "null"}, Kind.OTHER),
        ({"type": "string", "enum": "eu"}, Kind.TEXT),
        ({"type": "array", "items": {"type": "string"}}, Kind.OTHER),
    ],
)
def test_a_schema_beyond_the_subset_is_still_a_field(part: Any, kind: Kind):
    assert only(part).kind is kind


def test_a_proposal_counts_only_if_it_keeps_its_own_rules():
    assert only({"type": "integer", "default": 3}).has_default
    assert not only({"type": "integer", "default": "three"}).has_default
    assert not only({"type": "string", "enum": ["a"], "default": "b"}).has_default
    assert only({"type": "boolean", "default": False}).has_default


def test_words_fill_in_a_form_with_its_proposals_and_name_what_is_missing():
    fields = forms.fields_of(
        {
            "properties": {
                "approve": {"type": "boolean"},
                "region": {"type": "string", "enum": ["eu", "us"], "default": "eu"},
                "note": {"type": "string"},
            },
            "required": ["approve"],
        }
    )
    assert forms.content_of(fields, {"approve": "yes"}) == {"approve": True, "region": "eu"}
    given = {"approve": "no", "region": "us", "note": "later"}
    assert forms.content_of(fields, given) == {"approve": False, "region": "us", "note": "later"}
    with pytest.raises(Unfit, match="approve is missing: yes or no"):
        forms.content_of(fields, {})
    with pytest.raises(Unfit, match="no 'aprove'; it has approve, region, note"):
        forms.content_of(fields, {"aprove": "yes"})
    with pytest.raises(Unfit, match="approve: answer yes or no"):
        forms.content_of(fields, {"approve": "perhaps"})
