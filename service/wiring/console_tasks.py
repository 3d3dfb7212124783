"""The console's list of tasks, over the objects of a process."""

from collections.abc import Sequence

from ...adapters.task_search import PostgresTaskSearch
from ..console.frame import Frame
from ..console.redaction import Redactor
from ..console.tasks import Tasks
from .process import Built


def task_list(built: Built, frame: Frame, redact: Sequence[str]) -> Tasks:
    """The page; `redact` is what the settings hide beside what is always hidden."""
    return Tasks(frame, PostgresTaskSearch(built.store, built.sealer), Redactor(redact))
