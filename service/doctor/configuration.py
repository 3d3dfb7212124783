"""What the settings say by themselves, before anybody is asked."""

import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from .. import secret_files, variables
from ..config import Config
from ..settings import LOOPBACK_HOSTS, Settings
from .finding import Finding, ok, problem, warning

ANY = "*"
FILE_SUFFIX = "_FILE"
PREFIX = "OUTLAST_"
MOUNTED = Path("/run/secrets")  # in a container, which has no other users
NAMES_CHANGE = "Put the names by which clients call the service into allowed_hosts."
PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def check_reach(settings: Settings, config: Config) -> Iterator[Finding]:
    """Who can reach the service, and by which names."""
    if settings.is_loopback:
        yield ok("reach", "Only this machine reaches the service.")
        return
    known = settings.tokens_file is not None or bool(config.identity.issuers)
    if not known:
        yield warning(
            "reach",
            f"Everybody who reaches {settings.host} is the same owner (allow_anonymous).",
            "Set tokens_file or [[identity.issuers]] unless a proxy before it checks who asks.",
        )
    names = set(settings.allowed_hosts)
    if ANY in names:
        yield warning(
            "reach",
            'Any Host header is accepted (allowed_hosts = ["*"]), so a page may rebind its name.',
            "List the names by which clients call the service in allowed_hosts.",
        )
    elif not names:
        yield problem("reach", "Every request is refused (allowed_hosts = []).", NAMES_CHANGE)
    elif names <= set(LOOPBACK_HOSTS):
        yield warning(  # as it should be behind a proxy of this machine, which passes its name on
            "reach",
            f"It is bound to {settings.host}, and a request by any name but loopback is refused.",
            f"{NAMES_CHANGE[:-1]}, unless all of them are on this machine.",
        )
    elif known:
        yield ok("reach", "Callers have to say who they are, and by which name they call.")
    if settings.public_url is not None and settings.public_url.startswith("http://"):
        yield warning(
            "reach",
            "Jobs elsewhere call back over plain http (public_url).",
            "Put TLS before the service, and make public_url begin with https://.",
        )


def check_keys(settings: Settings, config: Config) -> Iterator[Finding]:
    """Which keys are there, which are derived, and which lie in the database."""
    if settings.secret_key is None:
        text = "secret_key is not set: a key that lies in the database seals webhook secrets."
        change = (
            "Set OUTLAST_SECRET_KEY to 32 random characters or more, the same everywhere, before"
            " clients subscribe: changed later, it loses what it sealed."
        )
        local = settings.is_loopback
        yield ok("secret_key", text) if local else warning("secret_key", text, change)
    else:
        yield ok("secret_key", "secret_key is set.")
    if settings.seals:
        yield ok("data_keys", f"What tasks hold is sealed; {len(settings.data_keys)} keys are set.")
    else:
        yield warning(
            "data_keys",
            "What tasks hold is stored in the clear.",
            "Run `outlast keys new` and set OUTLAST_DATA_KEYS to what it prints.",
        )
    yield from _audit_key(settings)
    if settings.admin_token is None and not config.identity.issuers and not settings.is_loopback:
        yield warning(
            "admin_token",
            "Nobody can open /admin and /metrics unless a token of the file has the scope operate.",
            "Set OUTLAST_ADMIN_TOKEN to 32 random characters or more.",
        )


def _audit_key(settings: Settings) -> Iterator[Finding]:
    if not settings.audit:
        yield warning(
            "audit_signing_key",
            "No audit tree is built: what somebody changes in the log is not found.",
            "Set audit = true.",
        )
    elif settings.audit_signing_key is None and settings.secret_key is None:
        yield warning(
            "audit_signing_key",
            "Checkpoints are signed with a key that lies in the database they are to protect.",
            "Set OUTLAST_AUDIT_SIGNING_KEY to 32 random bytes in base64url.",
        )
    else:
        yield ok("audit_signing_key", "Checkpoints are signed with a key from elsewhere.")


def check_files(
    settings: Settings, path: Path | None, environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Who may read the files with secrets in them, and who may write those that decide."""
    files = [] if path is None else [("The configuration", path, _has_secrets(path))]
    if settings.tokens_file is not None:
        files.append(("tokens_file", settings.tokens_file, False))
    for name, value in sorted(environment.items()):
        if name.startswith(PREFIX) and name.endswith(FILE_SUFFIX) and value:
            is_tokens = name == "OUTLAST_TOKENS_FILE"
            files += [] if is_tokens else [(name, Path(value), True)]
    for what, file, secret in files:
        yield _file(what, file, secret=secret)


def _has_secrets(path: Path) -> bool:
    """Whether a secret stands in the file itself. What is filled in from elsewhere does not."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True  # whatever it is
    if any(found.get("server", {}).get(name) for name in secret_files.NAMES):
        return True
    texts = [found.get("console", {}).get("oidc", {}).get("client_secret")]
    for upstream in found.get("upstreams", {}).values():
        texts += [*upstream.get("env", {}).values(), *upstream.get("headers", {}).values()]
    return any(text and not _is_filled_in(text) for text in texts)


def _is_filled_in(text: str) -> bool:
    try:
        variables.filled(text, {})
    except variables.NotThere:
        return True
    return False


def _file(what: str, path: Path, *, secret: bool) -> Finding:
    try:
        mode, real = path.stat().st_mode, path.resolve()
        above = [folder.stat().st_mode for folder in real.parents]
    except OSError as error:
        return problem(
            "files", f"{what}, {path}, cannot be read ({error.strerror}).", "Correct the path."
        )
    # Who may not pass a folder above reaches nothing in it, whatever the file itself allows.
    others_pass = all(one & stat.S_IXOTH for one in above)
    any_passes = all(one & (stat.S_IXGRP | stat.S_IXOTH) for one in above)
    if any_passes and mode & (stat.S_IWGRP | stat.S_IWOTH):
        return problem(
            "files",
            f"{what}, {path}, may be written by others than its owner.",
            f"Run: chmod go-w {path}",
        )
    if secret and others_pass and mode & stat.S_IROTH:
        says, change = f"{what}, {path}, has secrets and everybody may read it.", f"chmod o= {path}"
        if MOUNTED in real.parents:  # as compose mounts them, for a user that does not own them
            return warning("files", says, f"Unless this is a container of its own: {change}")
        return problem("files", says, f"Run: {change}")
    return ok("files", f"{what}, {path}, is readable by whom it should be.")


def check_webhooks(config: Config, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Where webhooks may go."""
    given = config.events
    if not (given.enabled and given.webhooks):
        yield ok("webhooks", "Webhooks are switched off.")
        return
    if given.ca_file is not None and not given.ca_file.is_file():
        says = f"ca_file {given.ca_file} is not there."
        yield problem("webhooks", says, "Correct events.ca_file.")
    ports = ", ".join(map(str, given.ports))
    if given.development:
        yield warning(
            "webhooks",
            "Webhooks may go to this machine itself, over plain http (events.development).",
            "Take development out of [events] where others may subscribe.",
        )
    else:
        yield ok("webhooks", f"Webhooks go to public addresses alone, https, port {ports}.")
    if any(environment.get(name) for name in PROXIES):
        yield warning(
            "webhooks",
            "The environment names a proxy, and webhooks use none: they dial what was judged.",
            f"Let this machine reach public addresses on port {ports} directly.",
        )
