"""What Outlast promises of identity, isolation, retention and audit: a part of `promises.py`."""

from outlast.tests.promise import Promise

AUDIT = "Issue 5, identity and audit"

PROMISES = (
    # Reading
    Promise(
        "quotas-are-exact",
        "Nothing is opened beyond a quota, whoever opens at once; a refusal stores nothing.",
        f"{AUDIT}: isolation",
    ),
    Promise(
        "limits-have-names",
        "Who meets a limit is told its name, its value and, of a rate, when to come back.",
        f"{AUDIT}: isolation",
    ),
    Promise(
        "owners-do-not-slow-each-other",
        "Claims go round the owners: one task waits for one turn of each other owner, not for all.",
        f"{AUDIT}: isolation",
    ),
    # At rest
    Promise(
        "payloads-are-sealed-at-rest",
        "With data_keys no table ever holds a word of arguments, answers, progress or outcomes.",
        f"{AUDIT}: data at rest",
    ),
    Promise(
        "a-payload-opens-in-its-own-place",
        "What is sealed for one event of one task opens nowhere else, nor after a change.",
        f"{AUDIT}: data at rest",
    ),
    Promise(
        "rotation-rewrites-no-event",
        "Keys are rotated while services run: data keys are wrapped anew, events stay as they are.",
        f"{AUDIT}: data at rest",
    ),
    Promise(
        "a-lost-key-fails-closed",
        "A task whose key is not there is -32603 to its owner; all else goes on as before.",
        f"{AUDIT}: data at rest",
    ),
    # Retention
    Promise(
        "purge-leaves-no-payload",
        "After a purge no payload of the owner's is left in any table, dump or log.",
        f"{AUDIT}: proof",
    ),
    # Identity
    Promise(
        "only-tokens-for-this-service-open-it",
        "A forged, expired or foreign token opens nothing, and all of them are told the same.",
        f"{AUDIT}: identity",
    ),
    Promise(
        "each-door-has-its-scope",
        "Each method and page needs the scope named for it; without it, 403 and which one.",
        f"{AUDIT}: identity",
    ),
    Promise(
        "an-issuer-is-asked-seldom",
        "Whatever tokens come, an issuer's keys are asked for once in ten seconds at most.",
        f"{AUDIT}: identity",
    ),
    Promise(
        "an-issuer-that-is-down-keeps-nobody-out",
        "While an issuer is down its last keys stay good for a time; other ways in go on.",
        f"{AUDIT}: identity",
    ),
    Promise(
        "a-stream-ends-with-its-token",
        "A stream or socket ends when its caller's token does; a new token goes on.",
        f"{AUDIT}: identity",
    ),
    Promise(
        "a-callers-token-goes-nowhere",
        "A caller's token reaches no upstream, no log and no table.",
        f"{AUDIT}: identity",
    ),
    # Audit: the tree over the log
    Promise(
        "tampering-is-found",
        "A changed, dropped, reordered or inserted event is named by verify with its position.",
        AUDIT,
    ),
    Promise(
        "truncation-is-found",
        "A tail that was cut off is found by a checkpoint, at the latest by one kept elsewhere.",
        AUDIT,
    ),
    Promise(
        "erasure-keeps-proofs",
        "What is forgotten or erased still verifies; a payload that is gone otherwise does not.",
        AUDIT,
    ),
    Promise(
        "follower-misses-nothing",
        "The tree holds every event in order, whatever races, crashes and outages there were.",
        AUDIT,
    ),
    Promise(
        "follower-holds-up-no-append",
        "An append waits for no lock that the follower holds.",
        AUDIT,
    ),
    Promise(
        "proofs-need-no-server",
        "An inclusion or consistency proof is checked with the verifier key alone.",
        AUDIT,
    ),
    Promise(
        "damaged-views-are-named-and-mended",
        "What is stored beside the log and differs from it is named by verify; rebuild mends it.",
        AUDIT,
    ),
    Promise(
        "rebuild-tells-no-lie",
        "A rebuild beside a running service gives no client a wrong or missing answer.",
        AUDIT,
    ),
    Promise(
        "replay-is-what-the-client-saw",
        "Replaying a task to a version gives the very bytes that tasks/get answered then.",
        AUDIT,
    ),
    Promise(
        "export-is-cloudevents",
        "Every exported line is a CloudEvent, and its position is where an export goes on.",
        AUDIT,
    ),
    # The pages
    Promise(
        "audit-commands-run",
        "Every command of the audit page runs as it is written.",
        AUDIT,
    ),
    # Isolation and fuzzing
    Promise(
        "isolation-is-the-same-work",
        "For another's, a forgotten and an unknown task the store is asked the same statements.",
        f"{AUDIT}: isolation",
    ),
    Promise(
        "no-input-makes-it-stumble",
        "Whatever comes in, the process goes on, and what was refused has written nothing.",
        f"{AUDIT}: proof",
    ),
)
