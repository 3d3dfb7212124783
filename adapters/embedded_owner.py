"""Who owns an embedded server ends with it in order, also when SIGTERM comes at a bad moment.

The server has a session of its own: a process that is ended by a signal would leave it running.
"""

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from .embedded import EmbeddedServer

BY_SIGTERM = 128 + signal.SIGTERM  # exit status


class _Sigterm:
    """SIGTERM in a process that owns a server and would be ended by it at once, its server not.

    It ends this process through the block that stops the server: at once while `is_raised`, else
    where `look` is called next, so that no server is half started or half stopped.
    """

    def __init__(self) -> None:
        self.is_raised = self._is_heard = False
        self._is_ours = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )

    def listen(self) -> None:
        """Hear it from now on, unless somebody else does."""
        if self._is_ours:
            signal.signal(signal.SIGTERM, self._hear)

    def look(self) -> None:
        """Raises SystemExit if it has come."""
        if self._is_heard:
            sys.exit(BY_SIGTERM)

    def close(self) -> None:
        """Leave it to the default again."""
        if self._is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _hear(self, *_: object) -> None:
        self._is_heard = True
        if self.is_raised:
            self.look()


@contextmanager
def owned(folder: Path) -> Generator[EmbeddedServer]:
    """A server that is started and stopped with the block, also where SIGTERM ends the process.

    Who has handled SIGTERM itself before goes on to; who begins to within the block does so until
    its end. Raises what `EmbeddedServer.start` raises.
    """
    sigterm = _Sigterm()
    sigterm.listen()
    try:
        with EmbeddedServer.start(folder, sigterm.look) as server:
            try:
                sigterm.is_raised = True
                sigterm.look()
                yield server
            finally:
                sigterm.is_raised = False
                sigterm.listen()  # a loop that has heard it in the block hears it no more
        sigterm.look()
    finally:
        sigterm.close()
