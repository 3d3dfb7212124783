"""What Outlast promises who looks at it in a browser: a part of `promises.py`."""

from outlast.tests.promise import Promise

SEEN = "Issue 8, seen and run"

PROMISES = (
    Promise(
        "overview-tells-what-calls",
        "The first page tells what calls for somebody now, each figure a link to where it is dealt"
        " with; of other owners only to operators; without the store it still shows all ways.",
        f"{SEEN}: the console",
    ),
    Promise(
        "operators-see-who-works-on-what",
        "A page tells what waits, who holds which lease since when, and who is behind by how much.",
        f"{SEEN}: workers, queue depth and lag",
    ),
    Promise(
        "operators-see-proofs-step-by-step",
        "A page shows what was signed last, that it extends the one before, and how an event leads"
        " to it; what it hands out is verified by the command that it names.",
        f"{SEEN}: proofs of the audit log",
    ),
    Promise(
        "the-console-works-in-a-browser",
        "People approve, look back, filter, resend, sign in and out, and see nothing of others.",
        f"{SEEN}: browser tests",
    ),
    Promise(
        "the-console-is-readable-for-all",
        "axe-core finds nothing grave on any page, in both themes, narrow and wide; none of them"
        " scrolls sideways, asks another origin or has an error.",
        f"{SEEN}: browser tests",
    ),
)
