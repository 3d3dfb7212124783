"""Our errors into JSON-RPC errors and HTTP statuses: one table, read at the edge alone."""

import logging
import math
from typing import Any

from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY
from starlette.responses import Response

from ..domain import draft, errors
from . import jsonrpc
from .jsonrpc import Rejection, RequestId

_log = logging.getLogger("outlast.endpoint")

ID_LOGGED_MAX = 64

# The first class that matches decides. Clients read the code; 200 for -32603 because several
# look at the body of 200 and 400 only, and an outage must reach them as the error that it is.
_CODES: dict[type[errors.OutlastError], int] = {
    errors.TaskNotFound: INVALID_PARAMS,
    errors.MissingCapability: MISSING_REQUIRED_CLIENT_CAPABILITY,
    errors.TooManyWatches: INTERNAL_ERROR,  # it passes: a client must not take it for the last word
    errors.QuotaExceeded: INTERNAL_ERROR,  # it passes, too
    errors.TooManyRequests: INTERNAL_ERROR,
    errors.CallError: INVALID_PARAMS,
    errors.StoreUnavailable: INTERNAL_ERROR,
    errors.UpstreamUnavailable: INTERNAL_ERROR,
    errors.PayloadError: INTERNAL_ERROR,
}

# The draft's own codes, under its own names for them: its clients read code and data only.
_EVENTS_CODES: dict[type[errors.EventsError], tuple[int, str]] = {
    errors.EventNotFound: (draft.NOT_FOUND, "NotFound"),
    errors.Forbidden: (draft.FORBIDDEN, "Forbidden"),
    errors.TooManySubscriptions: (draft.RESOURCE_EXHAUSTED, "ResourceExhausted"),
    errors.Unsupported: (draft.UNSUPPORTED, "Unsupported"),
    errors.EndpointNotVerified: (draft.CALLBACK_ENDPOINT, "CallbackEndpointError"),
}


def rejection(error: Exception, request_id: RequestId | None = None) -> Rejection:
    """The answer to a failed request. Unknown errors are logged, and tell the client nothing."""
    if isinstance(error, Rejection):
        return error
    if isinstance(error, errors.UpstreamFault):
        return _of_code(error.code, error.message, error.data)
    if isinstance(error, errors.EventsError):
        code, name = _EVENTS_CODES[type(error)]
        return _of_code(code, name, _events_data(error))
    if isinstance(error, errors.TooManyRequests):
        return _too_fast(error)
    if isinstance(error, errors.PayloadError):  # it will not pass by itself
        named = f" ({error.key_name})" if isinstance(error, errors.KeyMissing) else ""
        _log.error("%s%s", error, named, extra={"task": error.task_id})
    for error_type, code in _CODES.items():
        if isinstance(error, error_type):
            return _of_code(code, str(error), _data(error))
    facts = {"request": _said(request_id)}
    _log.error("a request failed for an unexpected reason", exc_info=error, extra=facts)
    return _of_code(INTERNAL_ERROR, "Internal error", None)


def message(request_id: RequestId | None, error: Exception) -> bytes:
    """The answer to a failed request, for where only a message can tell it."""
    refused = rejection(error, request_id)
    return jsonrpc.error_bytes(request_id, refused.code, refused.message, refused.data)


def response(request_id: RequestId | None, error: Exception) -> Response:
    """The answer to a failed request over HTTP."""
    refused = rejection(error, request_id)
    body = jsonrpc.error_bytes(request_id, refused.code, refused.message, refused.data)
    return Response(body, refused.status, refused.headers, "application/json")


def _said(request_id: RequestId | None) -> RequestId | None:
    """An id is the client's own word: a long one is cut."""
    return request_id[:ID_LOGGED_MAX] if isinstance(request_id, str) else request_id


def _too_fast(error: errors.TooManyRequests) -> Rejection:
    """The one that has its own HTTP status: what stands between must understand it as well."""
    data = {"reason": "too_many_requests", "limit": error.limit, "most": error.most}
    return Rejection(
        _CODES[errors.TooManyRequests],
        str(error),
        data={**data, "retryAfterMs": math.ceil(error.retry_after_s * 1000)},
        status=429,
        headers={"Retry-After": str(math.ceil(error.retry_after_s))},
    )


def _of_code(code: int, message: str, data: Any) -> Rejection:
    return Rejection(code, message, data=data, status=ERROR_CODE_HTTP_STATUS.get(code, 200))


def _data(error: errors.OutlastError) -> Any:
    if isinstance(error, errors.MissingCapability):
        return {"requiredCapabilities": error.required}
    if isinstance(error, errors.TooManyWatches):
        return {"reason": "too_many_watches", "limit": error.limit, "most": error.most}
    if isinstance(error, errors.QuotaExceeded):
        return {"reason": "quota_exceeded", "limit": error.limit, "most": error.most}
    return None


def _events_data(error: errors.EventsError) -> dict[str, Any]:
    """The facts, and the prose when it is more than the name of the error."""
    told = str(error)
    return dict(error.data) if told == type(error).__doc__ else {**error.data, "detail": told}
