"""Every error that Outlast raises by its own judgement, as one tree.

    OutlastError
    ├── TaskError
    │   ├── TaskNotFound            unknown, expired or another owner's: nobody can tell which
    │   ├── TaskAlreadyEnded        the first terminal event won
    │   ├── StaleVersion            somebody else appended first: load again and decide again
    │   ├── StaleAttempt            the fence: another attempt runs this task now
    │   ├── TaskNotRunnable         parked on input, or already being worked on
    │   └── StreamFull              the stream reached its named cap
    ├── CallError
    │   ├── InvalidCall             parameters that the specification answers with -32602
    │   ├── MalformedAnswer         one answer of a tasks/update has the wrong shape
    │   ├── IdempotencyConflict     the key was used for another call
    │   ├── MissingCapability       the client did not declare what this needs (-32021)
    │   ├── TooManyWatches          a named limit of open watches is reached
    │   ├── QuotaExceeded           a named quota of tasks or bytes is reached
    │   ├── TooManyRequests         they come faster than they may; says when to come back
    │   └── EventsError             the Triggers & Events draft has a code for it
    │       ├── EventNotFound           no such event type, subscription, or source any more
    │       ├── Forbidden               not for this caller
    │       ├── TooManySubscriptions    the owner's quota is reached
    │       ├── Unsupported             an option that is not offered here
    │       └── EndpointNotVerified     the callback endpoint did not prove its intent
    ├── DuplicateOpening            the key already opened a task: find it and compare
    ├── StoreUnavailable            PostgreSQL cannot be reached or did not answer in time
    ├── PayloadError                what is stored of a task cannot be opened
    │   ├── PayloadErased           its data key is gone
    │   ├── PayloadDamaged          it was changed, or lies in another's place
    │   └── KeyMissing              it is sealed under a key that is not in data_keys
    ├── UpstreamError
    │   ├── UpstreamUnavailable     no connection to the upstream server
    │   └── UpstreamFault           the upstream answered with a JSON-RPC error
    ├── RemoteError                 seen from the client's end
    │   ├── RequestRefused          the server answered with a JSON-RPC error
    │   └── ConnectionLost          no answer, or the stream broke off: try again
    │       └── SlowDown            the server wants to be asked later; nothing was done
    ├── Unauthenticated             no valid identity
    ├── InsufficientScope           a valid identity that may not do this
    ├── IdentityUnavailable         the issuer's keys cannot be fetched now
    ├── AuditError
    │   ├── NotProvable             no such event, or no checkpoint covers it yet
    │   ├── NoteRefused             not a checkpoint, or not signed by a key that is trusted
    │   ├── TreeContradicts         what is stored is not what the newest checkpoint signed
    │   ├── WitnessKnows            the witness has signed another size than it was told
    │   └── WitnessUnavailable      the witness did not sign
    └── ConfigurationError          a setting is wrong; says where and why

A class docstring is the sentence that a person reads; facts are attributes. `service/problems.py`
translates to JSON-RPC and HTTP; `adapters/failures.py` translates foreign errors into these.
"""

from collections.abc import Mapping
from typing import Any


class OutlastError(Exception):
    """Something went wrong in Outlast."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)


class TaskError(OutlastError):
    """The task cannot do this."""


class TaskNotFound(TaskError):
    """Task not found."""


class TaskAlreadyEnded(TaskError):
    """The task has already ended and takes no more changes."""


class StaleVersion(TaskError):
    """The task has moved on since it was read."""

    def __init__(self, task_id: str, expected: int) -> None:
        super().__init__()
        self.task_id, self.expected = task_id, expected


class StaleAttempt(TaskError):
    """Another attempt has taken over this task."""

    def __init__(self, attempt: int, current: int) -> None:
        super().__init__()
        self.attempt, self.current = attempt, current


class TaskNotRunnable(TaskError):
    """The task has nothing to run now."""


class StreamFull(TaskError):
    """The task has reached the largest number of events that one task may have."""


class CallError(OutlastError):
    """The call cannot be served as it was sent."""


class InvalidCall(CallError):
    """The parameters are not valid."""


class MalformedAnswer(CallError):
    """An input response does not have the shape of its request's result."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"inputResponses[{key!r}] is not a valid response: {reason}")
        self.key, self.reason = key, reason


class IdempotencyConflict(CallError):
    """This idempotency key was used for a different call."""


class MissingCapability(CallError):
    """Missing required client capability"""

    def __init__(self, required: Mapping[str, Any]) -> None:
        super().__init__()
        self.required = required


class TooManyWatches(CallError):
    """Too many watches are open; close one, or try again later."""

    def __init__(self, limit: str, most: int) -> None:
        super().__init__(f"There are already {most} {limit}, which is the limit")
        self.limit, self.most = limit, most


class QuotaExceeded(CallError):
    """A quota is reached; try again once some tasks have ended and their time is over."""

    def __init__(self, limit: str, most: int) -> None:
        super().__init__(f"The quota {limit} is reached: {most}")
        self.limit, self.most = limit, most


class TooManyRequests(CallError):
    """Requests come faster than they may; wait as long as is said."""

    def __init__(self, limit: str, most: int, retry_after_s: float) -> None:
        super().__init__(f"The limit {limit} is reached: {most}; wait {retry_after_s:.3g} s")
        self.limit, self.most, self.retry_after_s = limit, most, retry_after_s


class EventsError(CallError):
    """The events request cannot be served. `data` tells programs why; the text is for people."""

    def __init__(self, message: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.data: Mapping[str, Any] = data


class EventNotFound(EventsError):
    """There is no such event type or subscription."""


class Forbidden(EventsError):
    """This caller may not have this."""


class TooManySubscriptions(EventsError):
    """The largest number of subscriptions is reached."""

    def __init__(self, most: int, limit: str = "subscriptions") -> None:
        super().__init__(limit=limit, max=most)


class Unsupported(EventsError):
    """This is not offered here."""

    def __init__(self, feature: str, value: Any) -> None:
        super().__init__(feature=feature, value=value)


class EndpointNotVerified(EventsError):
    """The callback endpoint did not prove that it wants these deliveries."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason=reason)


class DuplicateOpening(OutlastError):
    """A task was already opened with this idempotency key."""


class StoreUnavailable(OutlastError):
    """The task store cannot be reached; try again shortly."""


class PayloadError(OutlastError):
    """What is stored of this task cannot be opened."""

    def __init__(self, task_id: str) -> None:
        super().__init__()
        self.task_id = task_id


class PayloadErased(PayloadError):
    """What this task held was erased: its data key is gone."""


class PayloadDamaged(PayloadError):
    """What is stored of this task does not open: it was changed, or belongs elsewhere."""


class KeyMissing(PayloadError):
    """This task is sealed under a key that is missing from the setting data_keys here."""

    def __init__(self, task_id: str, key_name: str) -> None:
        super().__init__(task_id)
        self.key_name = key_name


class UpstreamError(OutlastError):
    """The upstream server could not serve the call."""


class UpstreamUnavailable(UpstreamError):
    """The upstream server cannot be reached."""

    def __init__(self, upstream: str, reason: str) -> None:
        super().__init__(f"The upstream server {upstream!r} cannot be reached: {reason}")
        self.upstream, self.reason = upstream, reason


class UpstreamFault(UpstreamError):
    """The upstream server answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


class RemoteError(OutlastError):
    """The server could not be asked."""


class RequestRefused(RemoteError):
    """The server answered with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


class ConnectionLost(RemoteError):
    """The connection to the server was lost."""


class SlowDown(ConnectionLost):
    """The server is asked too often; it has done nothing, and wants to be asked later."""

    def __init__(self, after_s: float) -> None:
        super().__init__()
        self.after_s = after_s


class Unauthenticated(OutlastError):
    """A valid bearer token is required."""


class InsufficientScope(OutlastError):
    """The caller may not do this."""

    def __init__(self, *scopes: str) -> None:
        super().__init__(f"This needs the scope {' and '.join(scopes)}")
        self.scopes = scopes


class IdentityUnavailable(OutlastError):
    """Who is asking cannot be checked now; try again shortly."""


class AuditError(OutlastError):
    """The log cannot be proven."""


class NotProvable(AuditError):
    """There is nothing to prove."""


class NoteRefused(AuditError):
    """This is not a checkpoint that a trusted key has signed."""


class TreeContradicts(AuditError):
    """The stored tree is not the one that the newest checkpoint signed."""


class WitnessKnows(AuditError):
    """The witness has signed a tree of another size."""

    def __init__(self, size: int) -> None:
        super().__init__(f"The witness has signed a tree of {size} leaves")
        self.size = size


class WitnessUnavailable(AuditError):
    """The witness did not sign."""


class ConfigurationError(OutlastError):
    """The configuration is not valid."""
