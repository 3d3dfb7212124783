"""The console's pages for who runs the service: the overview, workers, and proofs of the log."""

from ...adapters.open_requests import PostgresOpenRequests
from ...adapters.operations import PostgresOperations
from ..console.frame import Frame
from ..console.overview import Overview, Sources
from ..console.proofs import Ledger, Proofs
from ..console.workers import Instruments, Workers
from ..settings import Settings
from .process import Built
from .tools import operators


def overview(frame: Frame, settings: Settings, built: Built) -> Overview:
    """The first page, with a figure or two of the others."""
    requests = PostgresOpenRequests(built.store)
    return Overview(frame, Sources(requests, operators(built), _instruments(settings, built)))


def workers(frame: Frame, settings: Settings, built: Built) -> Workers:
    """The page of workers, queue and lags."""
    return Workers(frame, _instruments(settings, built))


def _instruments(settings: Settings, built: Built) -> Instruments:
    push = built.push
    return Instruments(
        PostgresOperations(built.store),
        built.auditing.following.standing,
        lambda: built.signal.is_live,
        None if push.sender is None else push.stores.subscriptions.count,
        follows=settings.audit,
    )


def proofs(frame: Frame, built: Built) -> Proofs:
    """The page of checkpoints and proofs."""
    given = built.auditing
    ledger = Ledger(given.prover, given.tree, given.notary, given.verifier, given.caveat)
    return Proofs(frame, ledger)
