"""A tool's time, on one process's clock."""

import time


class Budget:
    """It runs while the tool works and stands while it waits for the client."""

    def __init__(self, length_ms: int | None) -> None:
        self._left_s = float("inf") if length_ms is None else length_ms / 1000
        self._since: float | None = time.monotonic()

    @property
    def left_s(self) -> float:
        """Seconds left; infinite while standing."""
        if self._since is None:
            return float("inf")
        return self._left_s - (time.monotonic() - self._since)

    def stand(self, *, still: bool) -> None:
        """Stop or start the clock."""
        if still and self._since is not None:
            self._left_s, self._since = self.left_s, None
        elif not still and self._since is None:
            self._since = time.monotonic()
