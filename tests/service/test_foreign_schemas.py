"""Schemas that upstreams wrote: what fits, and what must not stop the service."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from jsonschema import Draft202012Validator, exceptions
from referencing import Registry

from outlast.service import schemas

pytestmark = pytest.mark.promise("foreign-schemas-stop-nothing")

BOUND_S = 60.0
NESTED_MAX = 100_000
NAMES = st.sampled_from(["a", "b"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from(["", "a", "ab", 0.5, 2**70])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=2)),
    max_leaves=5,
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
        "const": SCALARS,
        "enum": st.lists(SCALARS, min_size=1, max_size=2),
        "minimum": st.integers(-1, 1),
        "maxLength": st.integers(0, 1),
        "maxItems": st.integers(0, 2),
        "uniqueItems": st.booleans(),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "pattern": st.sampled_from(["^a", "b$", "[^a]"]),
    },
)
SCHEMAS = st.recursive(
    LEAVES | st.booleans(),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "additionalProperties": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "unevaluatedProperties": st.just(False),
            "dependentRequired": st.just({"a": ["b"]}),
            "contains": inner,
        },
    ),
    max_leaves=6,
)


@given(SCHEMAS, VALUES)
@settings(max_examples=400)
def test_what_fits_is_what_the_reference_implementation_says(schema: Any, value: Any):
    reference: Any = Draft202012Validator(schema, registry=Registry())
    assert schemas.fits(schemas.compiled(schema), value) == reference.is_valid(value)
    assert (schemas.misfit(schema, value) is None) == reference.is_valid(value)


def test_a_pattern_that_would_search_for_years_gives_up():
    validator = schemas.compiled({"type": "string", "pattern": "^(?=a)(a+)+$"})
    told: list[bool] = []
    # By another thread: one that never comes back must not keep this test.
    asking = threading.Thread(
        target=lambda: told.append(schemas.fits(validator, "a" * 60 + "!")), daemon=True
    )
    asking.start()
    asking.join(BOUND_S)
    assert told == [False]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
        {"$dynamicRef": "#x", "$dynamicAnchor": "x"},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"allOf": [{"$ref": "#"}]}}},
    ],
)
def test_what_refers_to_itself_without_end_is_an_end(schema: Any):
    fits = schemas.fits(schemas.compiled(schema), {})
    assert (schemas.misfit(schema, {}) is None) == fits


def test_what_nests_deeper_than_anything_honest_is_of_no_use():
    schema: dict[str, Any] = {}
    for _ in range(NESTED_MAX):
        schema = {"not": schema}
    assert schemas.compiled(schema) is None


@pytest.fixture
def visited() -> Iterator[tuple[str, list[bool]]]:
    """An address, and whether anybody has come there."""
    came: list[bool] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def wait() -> None:
            try:
                listener.accept()[0].close()
            except OSError:
                return
            came.append(True)

        threading.Thread(target=wait, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json", came
        listener.shutdown(socket.SHUT_RDWR)


def test_nothing_is_fetched(visited: tuple[str, list[bool]]):
    url, came = visited
    for schema in ({"$ref": url}, {"$schema": url, "$ref": url}, {"$id": url, "$ref": "other"}):
        assert schemas.compiled(schema) is None
        assert schemas.misfit(schema, {}) is None
    assert schemas.fits(schemas.compiled({"$schema": url, "type": "object"}), {})
    assert not came


@pytest.mark.parametrize(
    "schema",
    [None, [], "true", '{"type": "object"}', 5, {"type": "nothing"}, {"pattern": "("}, {1: 2}],
)
def test_what_is_no_schema_is_of_no_use(schema: Any):
    assert schemas.compiled(schema) is None
    assert not schemas.fits(schemas.compiled(schema), {})


def test_the_dialect_that_a_schema_names_is_kept():
    former = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]}
    assert not schemas.fits(schemas.compiled(former), [1])
    with pytest.raises(exceptions.SchemaError):
        Draft202012Validator.check_schema({"items": former["items"]})


def test_a_value_that_is_no_json_fits_nothing():
    validator = schemas.compiled({"type": "object", "properties": {"a": {"pattern": "x"}}})
    assert not schemas.fits(validator, {"a": "\ud800"})
    assert not schemas.fits(validator, {1: 2})


def test_what_does_not_fit_is_told_with_its_place_and_no_longer_than_one_reads():
    schema = {"properties": {"a": {"items": {"type": "integer"}}}}
    assert schemas.misfit(schema, {"a": [1, "x"]}) == '$.a[1]: "x" is not of type "integer"'
    told = schemas.misfit(schema, {"a": ["x" * 100_000]})
    assert told is not None
    assert len(told) <= schemas.MISFIT_CHARS_MAX
