"""One endpoint, tried under the very rules that webhooks go by."""

from collections.abc import Awaitable, Callable

from .finding import Finding, ok, problem

CHECK = "webhook probe"
Probe = Callable[[str], Awaitable[str | None]]  # why nothing arrived; None when something answered

_ANSWERED = frozenset({"http_4xx", "challenge_failed"})
_SAYS = {
    "connection_refused": "No connection to it can be made from here.",
    "timeout": "It does not answer in time.",
    "tls_error": "Its certificate does not hold.",
    "http_5xx": "It answers with an error of its own.",
}
_WHERE = "See the name, the firewall on the way, and that its address is a public one."


async def check_webhook(url: str, probe: Probe) -> Finding:
    """One signed challenge, which an endpoint may well refuse: it has not subscribed."""
    reason = await probe(url)
    if reason is None or reason in _ANSWERED:
        return ok(CHECK, "The endpoint can be reached from here.")
    if reason in _SAYS:
        return problem(CHECK, _SAYS[reason], _WHERE)
    return problem(
        CHECK,
        f"No webhook may go there ({reason}).",
        "Use an https URL of a name that leads to public addresses alone, on one of events.ports.",
    )
