"""What the database says of itself, and how far everything is that follows it."""

from collections.abc import Iterator

from ...domain.audit import Standing
from ...domain.diagnosing import Manners, StoreFacts
from ...domain.operating import Load
from .finding import Finding, ok, problem, warning

VERSION_MIN = 140_000
SKEW_S, SKEW_S_MAX = 1.0, 30.0  # tokens and webhook signatures allow for some seconds
QUEUED_S, QUEUED_S_MAX = 30.0, 300.0
OUTBOX_S = 900.0
FOLLOWED_S = 300.0
UNFOLLOWED = 10_000  # events; a follower reads thousands a second
STATEMENT_MS_MIN = 10_000
DIRECT = (
    "Give database_url the server's own address, or, at PgBouncer, set pool_mode = session for"
    " this database"
)


def check_server(facts: StoreFacts) -> Iterator[Finding]:
    """Its release, and whether it can be written."""
    major = facts.version // 10_000
    if facts.version < VERSION_MIN:
        yield problem("version", f"This is PostgreSQL {major}.", "Move to PostgreSQL 14 or newer.")
    else:
        yield ok("version", f"This is PostgreSQL {major}.")
    if facts.is_standby:
        yield problem(
            "primary",
            "This is a standby, which takes no writes and tells of none.",
            "Point database_url at the primary.",
        )


def check_durability(facts: StoreFacts) -> Iterator[Finding]:
    """Whether what was acknowledged is still there after a crash, and after a lost disk."""
    given, found = facts.settings, list[Finding]()
    if given["fsync"] == "off" or given["full_page_writes"] == "off":
        found.append(
            problem(
                "durability",
                "fsync or full_page_writes is off: a crash of the machine can ruin the database.",
                "Set fsync = on and full_page_writes = on.",
            )
        )
    if given["synchronous_commit"] == "off":
        found.append(
            problem(
                "durability",
                "synchronous_commit is off: an acknowledged task can be gone after a crash.",
                "Set synchronous_commit = on for this role and database.",
            )
        )
    yield from found or [ok("durability", "A commit is on disk before it is acknowledged.")]
    if given["wal_level"] == "minimal" or given["archive_mode"] == "off":
        yield warning(
            "backup",
            f"No write-ahead log is archived (wal_level {given['wal_level']}, archive_mode"
            f" {given['archive_mode']}): a backup restores to its own moment and no later.",
            "Set wal_level = replica, archive_mode = on and archive_command, or know that your"
            " provider does it.",
        )
    else:
        yield ok("backup", "The write-ahead log is archived.")


def check_settings(facts: StoreFacts, processes: int, each: int) -> Iterator[Finding]:
    """Connections, vacuum, time-outs."""
    most = processes * each
    if most > facts.room:
        yield warning(
            "connections",
            f"{processes} processes want up to {most} connections, and {facts.room} are allowed.",
            "Raise max_connections, or run fewer processes.",
        )
    else:
        yield ok("connections", f"Up to {most} connections are wanted of {facts.room}.")
    if facts.settings["autovacuum"] == "off":
        yield warning(
            "autovacuum",
            "autovacuum is off: the run queue and the outbox bloat, and everything gets slower.",
            "Set autovacuum = on.",
        )
    else:
        yield ok("autovacuum", "autovacuum is on.")
    within = int(facts.settings["statement_timeout"])
    if 0 < within < STATEMENT_MS_MIN:
        yield warning(
            "statement_timeout",
            f"statement_timeout ends statements after {within} ms, before we give up on them.",
            "Set it to 0 for this role, or to 10 s and more.",
        )
    zone = facts.settings["TimeZone"]
    yield ok("timezone", f"The time zone is {zone}, which makes no difference.")


def check_schema(facts: StoreFacts) -> Iterator[Finding]:
    """The steps that were applied, against those of this code."""
    lacks = ", ".join(f"{number:04d}" for number in facts.lacks)
    if lacks:
        yield problem(
            "schema", f"The schema lacks {lacks}.", "Run `outlast db upgrade`; services may run."
        )
    elif facts.is_ahead:
        yield warning(
            "schema",
            f"The schema has {max(facts.applied):04d}, of a newer release than this one.",
            "Finish the upgrade: replace the processes of this release.",
        )
    else:
        yield ok("schema", f"The schema is up to date, at {max(facts.applied, default=0):04d}.")


def check_clock(facts: StoreFacts) -> Iterator[Finding]:
    """How far the clocks are apart."""
    apart, which = abs(facts.ahead_s), "ahead of" if facts.ahead_s > 0 else "behind"
    says = f"The database's clock is {apart:.1f} s {which} ours."
    change = "Let both machines follow NTP."
    if apart - facts.unsure_s > SKEW_S_MAX:
        yield problem("clock", says, change)
    elif apart - facts.unsure_s > SKEW_S:
        yield warning("clock", says, change)
    else:
        yield ok("clock", "The database's clock and ours agree.")


def check_connections(manners: Manners) -> Iterator[Finding]:
    """Whether a connection is one, or a pooler gives each transaction another."""
    if not manners.hears:
        yield problem(
            "listen",
            "A NOTIFY does not arrive: a transaction pooler such as PgBouncer swallows LISTEN, so"
            " changes are found by looking, a second late.",
            f"{DIRECT}.",
        )
    else:
        yield ok("listen", "A NOTIFY arrives at who listens.")
    if not manners.keeps:
        yield problem(
            "session",
            "Statements of one connection meet different sessions: locks and settings are lost.",
            f"{DIRECT}.",
        )
    else:
        yield ok("session", "A connection keeps its session.")
    if not manners.prepares:
        yield problem(
            "prepared",
            "A prepared statement is forgotten between two statements: requests fail.",
            f"{DIRECT}; max_prepared_statements alone mends this and neither of the others.",
        )
    else:
        yield ok("prepared", "Prepared statements are kept.")


def check_work(load: Load) -> Iterator[Finding]:
    """What waits, and for how long."""
    oldest = load.queue.oldest_s or 0.0
    says = f"{load.queue.due} tasks wait for a worker, the oldest for {oldest:.0f} s."
    change = "Start more workers (`outlast worker`), or raise slots; see that a worker runs at all."
    if oldest > QUEUED_S_MAX:
        yield problem("queue", says, change)
    elif oldest > QUEUED_S:
        yield warning("queue", says, change)
    else:
        yield ok("queue", says)
    late = load.outbox.oldest_s or 0.0
    says = f"{load.outbox.due} deliveries of webhooks are due, the oldest for {late:.0f} s."
    if late > OUTBOX_S:
        change = "See `outlast webhooks list --only failing`, and that a `serve` runs to send them."
        yield warning("outbox", says, change)
    else:
        yield ok("outbox", says)


def check_follower(standing: Standing) -> Iterator[Finding]:
    """How far the audit tree is behind the log."""
    behind = standing.head - standing.position
    says = f"The audit tree is {behind} positions behind the log."
    waits = standing.size > standing.checkpointed
    if waits and standing.age_s is None:  # the first one is signed as soon as there is a leaf
        says = f"The audit tree has {standing.size} leaves, and no checkpoint was ever signed."
    is_old = standing.age_s is None or standing.age_s > FOLLOWED_S
    if behind > UNFOLLOWED or (waits and is_old):
        yield warning(
            "follower",
            says,
            "See that a `serve` or `worker` runs, and its log under outlast.audit.",
        )
    else:
        yield ok("follower", says)
