"""The only place that names concrete classes: what is built from which settings."""

from .application import lookout, parts
from .audit import Auditing, auditing, offline_notary
from .audit_reading import audit_reading, rebuilding, view_audit
from .client import reaching
from .doctor import doctor
from .identity import own_access
from .keys import key_counts, new_key_line, rotate_keys
from .process import Built, build
from .stdio import Early, early, shared_database, whole
from .store import CONNECTIONS_MAX, database, now, orphaned, see_to_room, upgrade
from .tools import Reception, operating, operators, purging, receiving, scrub

__all__ = [
    "CONNECTIONS_MAX",
    "Auditing",
    "Built",
    "Early",
    "Reception",
    "audit_reading",
    "auditing",
    "build",
    "database",
    "doctor",
    "early",
    "key_counts",
    "lookout",
    "new_key_line",
    "now",
    "offline_notary",
    "operating",
    "operators",
    "orphaned",
    "own_access",
    "parts",
    "purging",
    "reaching",
    "rebuilding",
    "receiving",
    "rotate_keys",
    "scrub",
    "see_to_room",
    "shared_database",
    "upgrade",
    "view_audit",
    "whole",
]
