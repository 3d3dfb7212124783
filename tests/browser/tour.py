"""Every page of the console with something on it, and the same pages with nothing."""

from dataclasses import dataclass

from outlast.tests.browser.site import BROKEN, LINT, QUESTION, TEST, Site
from outlast.tests.delivery.webhook_world import SECRET, hook

SIGN_IN = "sign-in"


@dataclass(frozen=True)
class Stop:
    """One page: what its picture is called, where it is, and who looks."""

    name: str
    path: str
    person: str | None = "olga"
    status: int = 200


async def furnished(site: Site) -> list[Stop]:
    """Tasks of every kind, and where to look at them."""
    person = "olga"
    webhook = await _webhook(site, person)
    passed = await site.finished(person, TEST, LINT)
    await site.finished(person, BROKEN, LINT)
    for _ in range(3):
        await site.finished(person, LINT, TEST)
    asking = await site.asking(person)
    await site.begun(person, {"name": "soak", "run": "exec sleep 120"})
    return [
        Stop(SIGN_IN, "/console/sign-in", None),
        Stop("overview", "/console"),
        Stop("tasks", "/console/tasks"),
        Stop("task", f"/console/tasks/{passed}"),
        Stop("version", f"/console/tasks/{passed}/versions/2"),
        Stop("inbox", "/console/inbox"),
        Stop("form", f"/console/inbox/{asking}/{QUESTION}"),
        Stop("webhooks", "/console/webhooks"),
        Stop("webhook", f"/console/webhooks/{webhook}"),
        Stop("workers", "/console/workers"),
        Stop("proofs", f"/console/proofs?event={passed}"),
    ]


async def _webhook(site: Site, person: str) -> str:
    """One that got an event, and whose endpoint is gone since."""
    async with hook() as endpoint:
        wish = {"mode": "webhook", "url": endpoint.url, "secret": SECRET}
        params = {"name": "task.finished", "arguments": {}, "delivery": wish}
        granted = (await site.client(person).request("events/subscribe", params)).result
        await site.finished(person, LINT)
        await endpoint.got(1)
    return granted["id"]


EMPTY = [
    Stop("no-tasks", "/console/tasks", "bob"),
    Stop("no-question", "/console/inbox", "bob"),
    Stop("no-webhook", "/console/webhooks?only=suspended"),
    Stop("no-such-task", "/console/tasks/unknown", "bob", 404),
    Stop("forbidden", "/console/workers", "bob", 403),
]
