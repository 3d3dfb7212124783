"""An owner of an embedded PostgreSQL in a process of its own, which can be killed."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT_S = 60

# It commits 100 rows, says its server's pid, and ends in order when its input closes.
# Another user may have no way to the interpreter, so it changes the user once all is imported.
OWNER = """
import os, sys
from pathlib import Path
import psycopg
from outlast.adapters.embedded import EmbeddedServer
if len(sys.argv) > 2:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
with EmbeddedServer.start(Path(sys.argv[1])) as server:
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
        connection.execute("INSERT INTO kept SELECT generate_series(1, 100)")
    print(server.pid, flush=True)
    sys.stdin.read()
"""


@contextmanager
def owner_process(folder: Path, uid: int | None = None) -> Iterator[tuple[int, Callable[[], None]]]:
    """The pid of the server that another process owns, and a way to kill that owner."""
    command = [sys.executable, "-c", OWNER, str(folder), *([] if uid is None else [str(uid)])]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def kill() -> None:
            process.kill()
            process.wait(WAIT_S)

        try:
            yield int(process.stdout.readline()), kill
        finally:
            process.stdin.close()
            process.wait(WAIT_S)
