"""Where in a JSON value something is."""

from collections.abc import Iterable


def along(root: str, steps: Iterable[str | int]) -> str:
    """The path from `root` by these names and places: `$.a[0]`."""
    return root + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
