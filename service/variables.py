"""`${NAME}` in a file's values: secrets stay in the environment, and out of the file."""

import re
from collections.abc import Mapping

_NAMED = re.compile(r"\$(\$?)\{([A-Za-z_][A-Za-z0-9_]*)\}")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class NotThere(Exception):
    """The environment has no such variable, or one that cannot be used here. Shows no value."""


def filled(text: str, environment: Mapping[str, str]) -> str:
    """The text with `${NAME}` replaced by the variable's value; `$${NAME}` stands for `${NAME}`.

    What a value holds is not looked through again. Raises NotThere.
    """

    def value(found: re.Match[str]) -> str:
        escaped, name = found.groups()
        if escaped:
            return found[0][1:]
        if not environment.get(name):
            raise NotThere(f"the environment has no {name}, or it is empty")
        if _CONTROL.search(environment[name]):
            raise NotThere(f"{name} holds a line break or another control character")
        return environment[name]

    return _NAMED.sub(value, text)
