"""The console's inbox and its webhook pages, over the objects of a process."""

from ...adapters.open_requests import PostgresOpenRequests
from ..answering import Answering, Tasks
from ..console.frame import Frame
from ..console.inbox import Inbox
from ..console.webhooks import Webhooks
from .process import Built
from .tools import operators


def inbox_of(frame: Frame, built: Built) -> Inbox:
    """What waits for an answer, and who answers."""
    tasks = Tasks(built.commands, built.log, built.views, built.retention)
    return Inbox(frame, PostgresOpenRequests(built.store), built.views, Answering(tasks))


def webhooks_of(frame: Frame, built: Built) -> Webhooks:
    """What operators may do with webhooks."""
    return Webhooks(frame, operators(built))
