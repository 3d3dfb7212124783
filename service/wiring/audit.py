"""The tree over the log: who follows it, who signs it, and what proves it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ...adapters import audit_log, audit_tree, notes, postgres, server_key, witness
from ...domain.audit import AuditLog, AuditTree, Notary, TreeFollowing
from ..auditing.following import Follower, Loop, Pace
from ..auditing.proving import Prover
from ..auditing.verifying import LogCheck, Stored
from ..auditing.witnessing import Witnessing
from ..settings import Settings

OWN_KEY = (
    "the checkpoints are signed with a key that lies in the database: whoever can write the"
    " database could also sign. Set audit_signing_key, or keep checkpoints elsewhere"
)


@dataclass(frozen=True)
class Auditing:
    """The tree of one store. `verifier` is the key that its checkpoints are signed with."""

    log: AuditLog
    tree: AuditTree
    following: TreeFollowing
    notary: Notary
    verifier: str
    loops: Sequence[Loop]
    caveat: str | None

    @property
    def prover(self) -> Prover:
        """What makes proofs."""
        return Prover(self.log, self.tree)

    def check(self, kept: str | None) -> LogCheck:
        """The check of the log, and that it extends the kept checkpoint."""
        stored = Stored(self.log, self.tree, self.notary, self.following.standing)
        return LogCheck(stored, kept, self.caveat)


def auditing_of(
    settings: Settings, store: postgres.Database, own_key: str, trusted: Sequence[str] = ()
) -> Auditing:
    """The tree over this store. With `trusted`, the signatures of these keys alone count."""
    log, tree = audit_log.PostgresAuditLog(store), audit_tree.PostgresAuditTree(store)
    following = audit_tree.PostgresTreeFollowing(store)
    signing = _signing_key(settings, own_key)
    believed = [notes.VerifierKey.parse(each) for each in trusted or settings.audit_trusted_keys]
    if not trusted:
        believed.insert(0, signing.verifier)
    notary = notes.CheckpointNotary(settings.audit_origin, signing, believed)
    loops = [Follower(following, notary, _pace(settings)).loop()] if settings.audit else []
    if settings.audit and settings.audit_witness_url is not None:
        given = settings.audit_witness_key
        key = None if given is None else notes.VerifierKey.parse(given)
        shown = witness.HttpWitness(settings.audit_witness_url, key)
        record = audit_tree.PostgresWitnessRecord(store)
        loops.append(Witnessing(Prover(log, tree), record, shown).loop())
    is_own = settings.audit_signing_key is None and settings.secret_key is None
    return Auditing(
        log=log,
        tree=tree,
        following=following,
        notary=notary,
        verifier=str(signing.verifier),
        loops=loops,
        caveat=OWN_KEY if is_own and not trusted else None,
    )


@asynccontextmanager
async def auditing(
    settings: Settings, url: str, trusted: Sequence[str] = ()
) -> AsyncGenerator[Auditing]:
    """The same alone, over an upgraded store. Nothing follows the log here."""
    own_key, _ = await server_key.read(url)
    store = postgres.Database(url)
    await store.open()
    try:
        yield auditing_of(settings, store, own_key, trusted)
    finally:
        await store.close()


def offline_notary(verifier: str) -> Notary:
    """What reads checkpoints of the one log that this key signs. Raises ConfigurationError."""
    key = notes.VerifierKey.parse(verifier)
    return notes.CheckpointNotary(key.name, None, [key])


def _signing_key(settings: Settings, own_key: str) -> notes.SigningKey:
    if settings.audit_signing_key is not None:
        return notes.SigningKey.parse(settings.audit_origin, settings.audit_signing_key)
    return notes.SigningKey.derived(settings.audit_origin, settings.secret_key or own_key)


def _pace(settings: Settings) -> Pace:
    return Pace(settings.audit_checkpoint_events, settings.audit_checkpoint_s)
