"""Whether a client's answer has the shape of the result that its request asks for."""

from collections.abc import Mapping
from typing import Any

from mcp_types import (
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitResult,
    ListRootsResult,
)
from pydantic import BaseModel, ValidationError

from ..domain import errors
from ..domain.task import Task

# Content is not held against the requested schema: the server that asked knows what it accepts.
_RESULTS: Mapping[str, tuple[type[BaseModel], ...]] = {
    "elicitation/create": (ElicitResult,),
    "sampling/createMessage": (CreateMessageResult, CreateMessageResultWithTools),
    "roots/list": (ListRootsResult,),
}


def check(task: Task, answers: Mapping[str, Any]) -> None:
    """Judge the answers to outstanding questions, and no others. Raises MalformedAnswer."""
    for question in task.outstanding:
        if question.key in answers:
            _check_one(question.key, question.request["method"], answers[question.key])


def _check_one(key: str, method: str, answer: Any) -> None:
    if not isinstance(answer, dict):
        raise errors.MalformedAnswer(key, "it must be an object")
    problem = ""
    for model in _RESULTS.get(method, ()):
        try:
            model.model_validate(answer)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            problem = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        else:
            return
    if problem:
        raise errors.MalformedAnswer(key, problem)
