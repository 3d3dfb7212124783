"""JSON Schemas that upstreams wrote, and values that anybody sent: neither is trusted.

Nothing is ever fetched, what refers to itself without end is refused, and the engine counts the
steps of a pattern and gives up: no schema and no value stops the process for the others.
"""

from typing import Any, cast

from jsonschema_rs import Validator, validator_cls_for

from ..domain import jsonpath

MISFIT_CHARS_MAX = 500  # what does not fit may be as long as a result


def compiled(schema: Any) -> Validator | None:
    """What values are held against; None for a schema that cannot be used.

    Of the dialect that `$schema` names, and of 2020-12 where it names none that is known. `$ref` is
    resolved within the schema only. `format` is a note, as that dialect has it.
    """
    if not isinstance(schema, dict | bool):
        return None
    known = cast("dict[str, Any] | bool", schema)
    try:
        return validator_cls_for(known)(known, offline=True, validate_formats=False)
    except ValueError:
        return None


def fits(validator: Validator | None, value: Any) -> bool:
    """Whether the value is as the schema says; False without one, and for what is no JSON."""
    if validator is None:
        return False
    try:
        return validator.is_valid(value)
    except ValueError:
        return False


def misfit(schema: Any, value: Any) -> str | None:
    """What does not fit, and where; None also for a schema that nothing can be held against."""
    validator = compiled(schema)
    if validator is None:
        return None
    try:
        wrong = next(iter(validator.iter_errors(value)), None)
    except ValueError as error:
        return f"$: {error}"
    if wrong is None:
        return None
    return f"{jsonpath.along('$', wrong.instance_path)}: {wrong.message}"[:MISFIT_CHARS_MAX]
