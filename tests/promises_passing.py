"""What Outlast promises of all that passes through it: a part of `promises.py`."""

from outlast.tests.promise import Promise

TRANSPARENT = "Issue 7, transparent"

PROMISES = (
    Promise(
        "results-pass-as-they-came",
        "What an upstream answers beside tools comes as it came, unknown members and errors too.",
        f"{TRANSPARENT}: pass-through",
    ),
    Promise(
        "what-is-named-can-be-read",
        "A resource that a result names can be read under that name, with several upstreams too.",
        f"{TRANSPARENT}: pass-through",
    ),
    Promise(
        "lists-say-what-is-missing",
        "A list made while an upstream is down has the others' entries and names the missing one.",
        f"{TRANSPARENT}: pass-through",
    ),
    Promise(
        "logs-reach-their-own-request",
        "Log messages reach the request that asked for them, and no other client's.",
        f"{TRANSPARENT}: pass-through",
    ),
    Promise(
        "rounds-pass-through",
        "A question on prompts/get or resources/read reaches the client and its answer goes back, "
        "of a legacy upstream too; nothing is kept between the rounds.",
        f"{TRANSPARENT}: pass-through, MRTR",
    ),
    Promise(
        "states-are-sealed",
        "A requestState is good for its own owner, method and parameters, and for no others.",
        f"{TRANSPARENT}: pass-through, MRTR",
    ),
    Promise(
        "cancel-by-closing-reaches-upstream",
        "A client that closes its request's connection stops the work at the upstream.",
        f"{TRANSPARENT}: pass-through, cancellation",
    ),
    Promise(
        "no-store-on-the-way",
        "With PostgreSQL stopped, direct tools and all that passes through are served.",
        f"{TRANSPARENT}: pass-through",
    ),
    Promise(
        "discover-never-hangs",
        "server/discover answers within seconds and names the upstreams that are down or hang.",
        f"{TRANSPARENT}: pass-through",
    ),
    Promise(
        "announcements-pass-through",
        "Changes of lists and subscribed resources are told on streams and sockets, under public "
        "names; also that an upstream which was down is back.",
        f"{TRANSPARENT}: list-changed relayed",
    ),
    Promise(
        "answers-are-those-of-the-server-alone",
        "Generated requests are answered as the server alone does, but for what the one table "
        "of a gateway's own names.",
        f"{TRANSPARENT}: proof",
    ),
    Promise(
        "real-clients-see-the-upstream",
        "Clients written by others list, call, read and wait through Outlast, unchanged.",
        f"{TRANSPARENT}: proof",
    ),
    Promise(
        "foreign-schemas-stop-nothing",
        "A schema that an upstream wrote fetches nothing and stops nobody, whatever its patterns "
        "and references are; what fits it is what the reference implementation says.",
        f"{TRANSPARENT}: pass-through",
    ),
)
