"""How long to leave an upstream alone that has failed."""

HEALTHY_S = 10.0  # what lived as long as this is opened again at once
BACKOFF_S_FIRST = 0.5
BACKOFF_S_MAX = 30.0


def backoff_s(failures: int) -> float:
    """How long to wait after so many failures in a row: not at all after the first, then longer."""
    if failures <= 1:
        return 0.0
    return min(BACKOFF_S_FIRST * 2.0 ** min(failures - 2, 16), BACKOFF_S_MAX)


def failures_after(failures: int, lived_s: float) -> int:
    """How many failures in a row there are when one more thing has ended, this old."""
    return 0 if lived_s >= HEALTHY_S else failures + 1
