"""Settings that a file holds: `OUTLAST_SECRET_KEY_FILE=/run/secrets/secret_key`."""

from collections.abc import Mapping
from pathlib import Path

from ..domain import errors

NAMES = (
    "database_url",
    "data_keys",
    "secret_key",
    "admin_token",
    "webhook_signing_key",
    "audit_signing_key",
)
FILE_BYTES_MAX = 64 * 1024


def variable_of(name: str) -> str:
    """The variable that names the file of this setting."""
    return f"OUTLAST_{name.upper()}_FILE"


def read(environment: Mapping[str, str]) -> dict[str, str]:
    """What the named files hold, without the line break at the end.

    Raises ConfigurationError, which shows nothing of it.
    """
    named = {name: environment.get(variable_of(name)) for name in NAMES}
    return {name: _content(name, path, environment) for name, path in named.items() if path}


def _content(name: str, path: str, environment: Mapping[str, str]) -> str:
    variable = variable_of(name)
    itself = variable.removesuffix("_FILE")
    # The settings hear a variable in any case, and none that is empty.
    if any(value and given.upper() == itself for given, value in environment.items()):
        raise errors.ConfigurationError(f"environment: give {itself} or {variable}, not both")
    try:
        with Path(path).open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1).decode().strip()
    except OSError as error:
        reason = error.strerror
    except UnicodeDecodeError:
        reason = "it is not text"
    else:
        reason = "" if text else "it is empty"
        reason = "it is too long" if len(text) > FILE_BYTES_MAX else reason
        if not reason:
            return text
    raise errors.ConfigurationError(f"{variable}: cannot use {path}: {reason}")
