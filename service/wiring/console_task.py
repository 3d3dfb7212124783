"""The console's pages of one task, over the objects of a process."""

from collections.abc import Sequence

from ...adapters import codec, event_reader
from ...adapters.audit_log import PostgresAuditLog
from ..auditing.history import Historian
from ..console.frame import Frame
from ..console.redaction import Redactor
from ..console.task import Sources, TaskPages
from ..methods.tasks import TaskMethods
from .process import Built


def task_pages(
    built: Built, methods: TaskMethods, frame: Frame, redact: Sequence[str]
) -> TaskPages:
    """The pages; `redact` is what the settings hide beside what is always hidden."""
    reader = event_reader.EventReader(built.sealer)
    historian = Historian(PostgresAuditLog(built.store), reader.read, codec.wire_of)
    sources = Sources(built.feed, built.views, historian, methods.cancel_for)
    return TaskPages(frame, sources, Redactor(redact))
