"""What `outlast doctor` says of settings alone: each sentence, its level, and when it is silent."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from outlast.service import config as configuration, settings
from outlast.service.doctor import configuration as checks
from outlast.service.doctor.finding import Finding
from outlast.service.settings import Settings
from outlast.tests.operations.doctoring import open_folder

pytestmark = pytest.mark.promise("doctor-names-what-to-change")

KEY = f"k1:{base64.urlsafe_b64encode(bytes(range(32))).decode()}"
SECRET = "a secret that is long enough to be one"
OPEN = 'host = "0.0.0.0"\nencrypt = "off"\n'
ANYBODY, KNOWN = OPEN + "allow_anonymous = true\n", OPEN + 'tokens_file = "tokens.toml"\n'
NAMED = 'allowed_hosts = ["tasks.example"]\n'
ISSUERS = (
    '[identity]\nresource = "https://tasks.example"\n'
    '[[identity.issuers]]\nissuer = "https://issuer.example"\n'
)
UPSTREAM = '[upstreams.ci]\ncommand = ["ci"]\n'
UPSTREAM_ENV = f'{UPSTREAM}env = {{ WORD = "x" }}\n'
UPSTREAM_HEADERS = '[upstreams.ci]\nurl = "http://127.0.0.1:1/mcp"\nheaders = { A = "x" }\n'


def given(server: str = "", rest: str = "") -> tuple[Settings, configuration.Config]:
    """The settings of a file with this [server] table; only the file counts."""
    config = configuration.parse(f"[server]\n{server}\n{rest}", "a test")
    has_issuers = bool(config.identity.issuers)
    return settings.load({}, config.server, has_issuers=has_issuers), config


def levels(found: Sequence[Finding], check: str) -> list[str]:
    assert all(bool(one.change) == (one.level != "ok") for one in found)
    return [one.level for one in found if one.check == check]


@pytest.mark.parametrize(
    ("server", "rest", "wanted"),
    [
        ("", "", ["ok"]),
        ('host = "::1"', "", ["ok"]),
        (KNOWN + NAMED, "", ["ok"]),
        (OPEN + NAMED, ISSUERS, ["ok"]),
        (KNOWN + 'allowed_hosts = ["localhost", "tasks.example"]', "", ["ok"]),
        (KNOWN, "", ["warning"]),  # all that a proxy on the same machine needs
        (KNOWN + "allowed_hosts = []", "", ["problem"]),
        (KNOWN + 'allowed_hosts = ["*"]', "", ["warning"]),
        (ANYBODY + NAMED, "", ["warning"]),
        (ANYBODY + 'allowed_hosts = ["*"]', "", ["warning", "warning"]),
        (KNOWN + NAMED + 'public_url = "https://tasks.example"', "", ["ok"]),
        (KNOWN + NAMED + 'public_url = "http://tasks.example"', "", ["ok", "warning"]),
    ],
)
def test_who_reaches_it_and_by_which_name(server: str, rest: str, wanted: list[str]):
    assert levels(list(checks.check_reach(*given(server, rest))), "reach") == wanted


@pytest.mark.parametrize(
    ("server", "rest", "check", "wanted"),
    [
        ("", "", "secret_key", ["ok"]),
        (KNOWN, "", "secret_key", ["warning"]),
        (KNOWN + f'secret_key = "{SECRET}"', "", "secret_key", ["ok"]),
        ("", "", "data_keys", ["warning"]),
        (f'data_keys = ["{KEY}"]', "", "data_keys", ["ok"]),
        (f'encrypt = "off"\ndata_keys = ["{KEY}"]', "", "data_keys", ["warning"]),
        ("", "", "audit_signing_key", ["warning"]),
        (f'secret_key = "{SECRET}"', "", "audit_signing_key", ["ok"]),
        (f'audit_signing_key = "{KEY[3:]}"', "", "audit_signing_key", ["ok"]),
        (f'audit = false\nsecret_key = "{SECRET}"', "", "audit_signing_key", ["warning"]),
        ("", "", "admin_token", []),
        (KNOWN, "", "admin_token", ["warning"]),
        (KNOWN, ISSUERS, "admin_token", []),
        (KNOWN + f'admin_token = "{SECRET}"', "", "admin_token", []),
    ],
)
def test_which_keys_are_there(server: str, rest: str, check: str, wanted: list[str]):
    assert levels(list(checks.check_keys(*given(server, rest))), check) == wanted


def test_an_unset_secret_key_is_said_to_lie_in_the_database_also_on_loopback():
    [said] = [one for one in checks.check_keys(*given()) if one.check == "secret_key"]
    assert "not set" in said.says


def test_no_audit_tree_is_another_thing_than_a_key_in_the_database():
    for server, words in (("audit = false", "audit = true"), ("", "OUTLAST_AUDIT_SIGNING_KEY")):
        found = checks.check_keys(*given(server))
        [change] = [one.change for one in found if one.check == "audit_signing_key"]
        assert words in change


PUBLIC, PRIVATE, GROUP, GROUP_WRITES, ALL_WRITE = 0o644, 0o600, 0o640, 0o660, 0o602
CONSOLE = '[console.oidc]\nissuer = "https://i.example"\nclient_id = "c"\nclient_secret = '


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as made:
        yield made


@pytest.mark.parametrize(
    ("text", "mode", "change"),
    [
        (UPSTREAM, PUBLIC, ""),
        (UPSTREAM, GROUP_WRITES, "chmod go-w"),
        (UPSTREAM, ALL_WRITE, "chmod go-w"),
        (f'[server]\nsecret_key = "{SECRET}"', PRIVATE, ""),
        (f'[server]\nsecret_key = "{SECRET}"', GROUP, ""),
        (f'[server]\nsecret_key = "{SECRET}"', PUBLIC, "chmod o="),
        (f'[server]\nadmin_token = "{SECRET}"', PUBLIC, "chmod o="),
        (f'[server]\ndata_keys = ["{KEY}"]', PUBLIC, "chmod o="),
        ("[server]\ndata_keys = []", PUBLIC, ""),
        (f'[server]\naudit_signing_key = "{KEY[3:]}"', PUBLIC, "chmod o="),
        (f'[server]\nwebhook_signing_key = "{KEY[3:]}"', PUBLIC, "chmod o="),
        ('[server]\ndatabase_url = "postgresql://o:word@db/o"', PUBLIC, "chmod o="),
        (UPSTREAM_ENV, PUBLIC, "chmod o="),
        (UPSTREAM_ENV.replace('"x"', '"${WORD}"'), PUBLIC, ""),
        (UPSTREAM_ENV.replace('"x"', '"$${WORD}"'), PUBLIC, "chmod o="),  # as it stands
        (UPSTREAM_HEADERS, PUBLIC, "chmod o="),
        (UPSTREAM_HEADERS.replace('"x"', '"Bearer ${TOKEN}"'), PUBLIC, ""),
        (CONSOLE + f'"{SECRET}"', PUBLIC, "chmod o="),
        (CONSOLE + '"${SECRET}"', PUBLIC, ""),
        ("this is no TOML", PUBLIC, "chmod o="),
    ],
)
def test_who_may_read_and_write_the_configuration(folder: Path, text: str, mode: int, change: str):
    path = folder / "outlast.toml"
    path.write_text(text)
    path.chmod(mode)
    [found] = checks.check_files(given()[0], path, {})
    assert found.level == ("problem" if change else "ok")
    assert found.change == (f"Run: {change} {path}" if change else "")


@pytest.mark.parametrize(
    ("above", "mode", "level"),
    [
        (0o755, 0o444, "problem"),
        (0o711, 0o444, "problem"),
        (0o750, 0o444, "ok"),
        (0o700, 0o444, "ok"),  # compose, as docs/deployment.md has it
        (0o700, 0o666, "ok"),
        (0o710, 0o460, "problem"),
        (0o700, 0o460, "ok"),
    ],
)
def test_a_closed_folder_above_closes_what_is_in_it(
    folder: Path, above: int, mode: int, level: str
):
    (folder / "in").mkdir()
    key = folder / "in" / "key"
    key.write_text(SECRET)
    key.chmod(mode)
    (folder / "link").symlink_to(key)  # as Kubernetes mounts it: where it leads to counts
    (folder / "in").chmod(above)
    environment = {"OUTLAST_SECRET_KEY_FILE": str(folder / "link")}
    [found] = checks.check_files(given()[0], None, environment)
    assert found.level == level


def test_what_a_container_mounts_for_itself_is_bearable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checks, "MOUNTED", folder)
    key = folder / "key"
    key.touch(mode=0o444)
    [found] = checks.check_files(given()[0], None, {"OUTLAST_SECRET_KEY_FILE": str(key)})
    assert found.level == "warning"
    assert f"chmod o= {key}" in found.change


def test_what_the_compose_deployment_has_is_no_problem():
    chosen, config = given(
        KNOWN + 'allowed_hosts = ["localhost", "127.0.0.1"]\nallowed_origins = ["localhost"]'
    )
    assert "problem" not in {one.level for one in checks.check_reach(chosen, config)}


def of_files(folder: Path, environment: Mapping[str, str]) -> list[tuple[str, str, str]]:
    tokens = folder / "tokens.toml"
    found = checks.check_files(given(f'tokens_file = "{tokens}"')[0], None, environment)
    return [(one.level, one.says.partition(",")[0], one.change) for one in found]


def test_the_files_that_the_settings_and_the_environment_name_are_looked_at(folder: Path):
    tokens, key = folder / "tokens.toml", folder / "key"
    missing = ("problem", "tokens_file", "Correct the path.")
    assert of_files(folder, {}) == [missing]
    for path in (tokens, key):
        path.touch()
        path.chmod(PUBLIC)
    # It holds digests alone, and is looked at once, whoever names it.
    well = ("ok", "tokens_file", "")
    assert of_files(folder, {"OUTLAST_TOKENS_FILE": str(tokens)}) == [well]
    named = {"OUTLAST_SECRET_KEY_FILE": str(key), "OTHER_KEY_FILE": str(key), "OUTLAST_X_FILE": ""}
    read = ("problem", "OUTLAST_SECRET_KEY_FILE", f"Run: chmod o= {key}")
    assert of_files(folder, named) == [well, read]
    tokens.chmod(GROUP_WRITES)
    assert of_files(folder, {}) == [("problem", "tokens_file", f"Run: chmod go-w {tokens}")]


@pytest.mark.parametrize(
    ("rest", "wanted", "words"),
    [
        ("[events]\nenabled = false", ["ok"], "switched off"),
        ("[events]\nwebhooks = false", ["ok"], "switched off"),
        ("", ["ok"], "https, port 443."),
        ("[events]\nports = [443, 8443]", ["ok"], "port 443, 8443."),
        ("[events]\ndevelopment = true", ["warning"], "this machine itself"),
        ('[events]\nca_file = "/nowhere/ca.pem"', ["problem", "ok"], "/nowhere/ca.pem is not"),
        (f'[events]\nca_file = "{__file__}"', ["ok"], "public addresses alone"),
    ],
)
def test_where_webhooks_may_go(rest: str, wanted: list[str], words: str):
    found = list(checks.check_webhooks(given(rest=rest)[1], {"HTTPS_PROXY": ""}))
    assert levels(found, "webhooks") == wanted
    assert words in found[0].says


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
def test_a_proxy_that_webhooks_do_not_use_is_named(name: str):
    found = list(checks.check_webhooks(given()[1], {name: "http://proxy.example:3128"}))
    assert levels(found, "webhooks") == ["ok", "warning"]
    assert "port 443" in found[-1].change
