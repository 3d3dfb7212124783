"""The only place that names concrete classes: what is built from which settings."""

from .application import parts
from .client import reaching
from .process import Built, build
from .store import database, now, upgrade
from .tools import Reception, operating, operators, receiving

__all__ = [
    "Built",
    "Reception",
    "build",
    "database",
    "now",
    "operating",
    "operators",
    "parts",
    "reaching",
    "receiving",
    "upgrade",
]
