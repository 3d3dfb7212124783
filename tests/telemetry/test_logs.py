"""A line of the log has the ids that lead to its trace, and nothing that is not an id."""

import json
import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider

from outlast.service import problems
from outlast.service.logs import JsonLines
from outlast.service.tracing import spans

CANARY = "canary-that-must-not-be-told"


def line(**facts: object) -> dict[str, object]:
    """What a log line says, as it leaves."""
    record = logging.makeLogRecord({"name": "outlast.test", "levelname": "INFO", "msg": "said"})
    vars(record).update(facts)
    return json.loads(JsonLines().format(record))


def test_what_is_said_within_a_span_names_it():
    with spans.spanning(TracerProvider().get_tracer("test"), "run") as span:
        said = line(task="t-1")
    here = span.get_span_context()
    assert (said["trace"], said["span"]) == (f"{here.trace_id:032x}", f"{here.span_id:016x}")
    assert said["task"] == "t-1"


def test_what_is_said_outside_of_one_names_none_and_tells_no_fact_that_is_no_id():
    said = line(task="t-1", arguments=CANARY)
    assert set(said) == {"time", "level", "logger", "message", "task"}


def test_an_unexpected_failure_is_logged_with_the_start_of_the_id_of_its_request(
    caplog: pytest.LogCaptureFixture,
):
    problems.response("r" * 1_000, RuntimeError("no reason that anybody foresaw"))
    (record,) = caplog.records
    assert line(**vars(record))["request"] == "r" * problems.ID_LOGGED_MAX
