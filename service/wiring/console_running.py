"""The console's pages for who runs the service: workers, and proofs of the log."""

from ...adapters.operations import PostgresOperations
from ..console.frame import Frame
from ..console.proofs import Ledger, Proofs
from ..console.workers import Instruments, Workers
from ..settings import Settings
from .process import Built


def workers(frame: Frame, settings: Settings, built: Built) -> Workers:
    """The page of workers, queue and lags."""
    push = built.push
    instruments = Instruments(
        PostgresOperations(built.store),
        built.auditing.following.standing,
        lambda: built.signal.is_live,
        None if push.sender is None else push.stores.subscriptions.count,
        follows=settings.audit,
    )
    return Workers(frame, instruments)


def proofs(frame: Frame, built: Built) -> Proofs:
    """The page of checkpoints and proofs."""
    given = built.auditing
    ledger = Ledger(given.prover, given.tree, given.notary, given.verifier, given.caveat)
    return Proofs(frame, ledger)
