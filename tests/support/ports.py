"""A port for a process that has to be told its number before it can ask for one."""

import random
import socket

# Below the range that the kernel gives to outgoing connections: of those there are hundreds a
# second, and one of them would now and then take the port before its process is up.
LOWEST, HIGHEST = 12_000, 32_000


def free_port() -> int:
    """A port of loopback that nobody uses."""
    while True:
        port = random.SystemRandom().randint(LOWEST, HIGHEST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
