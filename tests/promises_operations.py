"""What Outlast promises to whoever runs it: a part of `promises.py`."""

from outlast.tests.promise import Promise

DEPLOYMENT = "Issue 8, deployment"
DOCTOR = "Issue 8, doctor"

PROMISES = (
    Promise(
        "upgrade-without-downtime",
        "Old and new processes work on one database at once, and finish each other's tasks.",
        f"{DEPLOYMENT}: upgrade",
    ),
    Promise(
        "restored-to-a-moment",
        "A database restored to a moment verifies, is served, and its tasks go on from there.",
        f"{DEPLOYMENT}: restore",
    ),
    Promise(
        "runbook-runs",
        "Every command of the runbook does what it says, and every alert has a place in it.",
        f"{DEPLOYMENT}: runbook",
    ),
    Promise(
        "doctor-names-what-to-change",
        "`outlast doctor` names each misconfiguration that it knows, with what to change.",
        DOCTOR,
    ),
    Promise(
        "doctor-sees-a-pooler",
        "`outlast doctor` finds a transaction pooler before the database, by what it swallows.",
        f"{DOCTOR}: LISTEN through a pooler",
    ),
    Promise(
        "doctor-tells-no-secret",
        "Nothing that `outlast doctor` prints holds a key, a token or a password.",
        DOCTOR,
    ),
)
