"""What Outlast promises who signs in to the console: a part of `promises.py`."""

from outlast.tests.promise import Promise

SEEN = "Issue 8, seen and run"

PROMISES = (
    Promise(
        "a-console-session-is-sealed-and-ends",
        "A session is a sealed cookie without a token in it, and ends with the token it came from.",
        f"{SEEN}: console",
    ),
    Promise(
        "the-console-lets-in-who-may",
        "By a token or an issuer; no form, socket or redirect of another site does anything.",
        f"{SEEN}: console",
    ),
)
