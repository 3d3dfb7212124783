"""What Outlast promises when somebody else runs it: a part of `promises.py`."""

from outlast.tests.promise import Promise

SEEN_AND_RUN = "Issue 8, deployment"

PROMISES = (
    Promise(
        "proxy-passes-frames-at-once",
        "Through the shipped nginx.conf, frames of streams and of WebSockets arrive as they come.",
        SEEN_AND_RUN,
    ),
    Promise(
        "proxied-clients-outlive-a-replica",
        "Behind it, a replica that dies or drains costs a client one more try and no version.",
        SEEN_AND_RUN,
    ),
    Promise(
        "secrets-come-from-files",
        "Each secret can be read from a file; one that cannot be used ends the start, unshown.",
        SEEN_AND_RUN,
    ),
    Promise(
        "settings-are-documented",
        "docs/configuration.md has each setting that is read, with its type and its default.",
        SEEN_AND_RUN,
    ),
)
