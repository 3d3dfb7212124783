"""How much of its time to end a process has used up."""

import time


class Drain:
    """One drain. What ends after something else has what that has left of the time."""

    def __init__(self) -> None:
        self._begun: float | None = None

    def begin(self) -> None:
        """Now, if it has not begun."""
        if self._begun is None:
            self._begun = time.monotonic()

    def left_of(self, seconds: float) -> float:
        """All of it where nothing was told to end before."""
        spent = 0.0 if self._begun is None else time.monotonic() - self._begun
        return max(seconds - spent, 0.0)
