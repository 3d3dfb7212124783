"""`outlast.toml` and the settings: a mistake is named with file, line and reason, at the start."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outlast.domain import errors
from outlast.service import config, settings
from outlast.service.policy import Ask, OnWorkerLoss, Run
from outlast.tests.service.conftest import desk_config

DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the machine that runs the tests are none of the tests'."""
    for name in [name for name in os.environ if name.startswith("OUTLAST_")]:
        monkeypatch.delenv(name)


def mistake(text: str) -> str:
    """What is said of a mistake in a file named `outlast.toml`."""
    with pytest.raises(errors.ConfigurationError) as caught:
        config.parse(text, "outlast.toml")
    return str(caught.value)


# --- mistakes in the file


@pytest.mark.promise("policy-mistakes-are-named")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tools.x]\n\nrum = 'task'\n", "3: tools.x.rum: unknown setting; there are run, grace"),
        ("[tools.x]\nrun = 'often'\n", "2: tools.x.run: Input should be 'direct', 'auto', 'task'"),
        ("[tools.x]\nrun = true\n", "2: tools.x.run: Input should be"),
        ("[tools.x]\nask = 'after'\n", "2: tools.x.ask: Input should be 'during' or 'before'"),
        ("[tools.x]\non_worker_loss = 'retry'\n", "2: tools.x.on_worker_loss: Input should be"),
        ("tools.x.run = 'often'\n", "1: tools.x.run: Input should be"),
        ("\n[tools]\nx.run = 'often'\n", "3: tools.x.run: Input should be"),
        ("[tools]\nx = { run = 'often' }\n", "2: tools.x.run: Input should be"),
        ("[tools.\"a b\"]\nrun = 'often'\n", "2: tools.a b.run: Input should be"),
        ("[tools.x]\n[tools.y]\nttl = 5\n", "3: tools.y.ttl: a duration is written like"),
        ("[tools.x]\nttl = '5'\n", "2: tools.x.ttl: a duration is written like"),
        ("[tools.x]\nttl = '-5s'\n", "2: tools.x.ttl: a duration is written like"),
        ("[tools.x]\nttl = '5 s'\n", "2: tools.x.ttl: a duration is written like"),
        ('[tools.x]\nttl = "5s\\n"\n', "2: tools.x.ttl: a duration is written like"),
        (f"[tools.x]\nttl = '{'9' * 400}d'\n", "2: tools.x.ttl: a duration is written like"),
        ("[tools.x]\nttl = '٣s'\n", "2: tools.x.ttl: a duration is written like"),
        ("[tools.x]\nttl = '367d'\n", "2: tools.x.ttl: a duration is at most 366d"),
        ("[tools.x]\nttl = '0s'\n", "2: tools.x.ttl: must be longer than nothing"),
        ("[tools.x]\ntimeout = '0ms'\n", "2: tools.x.timeout: must be longer than nothing"),
        ("[tools.x]\ngrace = 'unlimited'\n", "2: tools.x.grace: a duration is written like"),
        ("[tools.x]\npoll_interval = '9ms'\n", "2: tools.x.poll_interval: Input should be greater"),
        ("[defaults]\nrun = 'task'\nttl = 1\n", "3: defaults.ttl: a duration is written like"),
        ("[defaults]\nx = 1\n", "2: defaults.x: unknown setting; there are run, grace"),
        ("[tools]\nx = 5\n", "2: tools.x: must be a table"),
        ("[[tools.x]]\nrun = 'task'\n", "1: tools.x: must be a table"),
        ("tools = 5\n", "1: tools: must be a table: [tools]"),
        ("[tool.x]\n", "1: tool: unknown section; there are server, upstreams, defaults, tools"),
        ("a = 1\n", "1: a: unknown section"),
        ("[upstreams.a]\n", "1: upstreams.a: give either command or url"),
        (
            "\n[upstreams.a]\ncommand = ['x']\nurl = 'http://x'\n",
            "2: upstreams.a: give either command or url",
        ),
        ("[upstreams.a]\ncommand = []\n", "2: upstreams.a.command: List should have at least 1"),
        ("[upstreams.a]\ncommand = 'x'\n", "2: upstreams.a.command: Input should be a valid list"),
        ("[upstreams.a]\nurl = 'ftp://x'\n", "2: upstreams.a.url: String should match"),
        ("[upstreams.a]\nurl = 'http://x'\nera = 'old'\n", "3: upstreams.a.era: Input should be"),
        ("[upstreams.a]\nurl = 'http://x'\ncwd = '/'\n", "1: upstreams.a: env and cwd go with"),
        (
            "[upstreams.a]\ncommand = ['x']\nheaders = { A = 'b' }\n",
            "1: upstreams.a: headers go with url",
        ),
        ("[upstreams.'a b']\nurl = 'http://x'\n", "1: upstreams.a b: a name has 1 to 64 letters"),
        ('[upstreams."a\\n"]\nurl = "http://x"\n', "1: upstreams.a\n: a name has 1 to 64 letters"),
        ("[server]\nhost = 'x'\nprot = 1\n", "3: server.prot: unknown setting; there are host"),
        ("[server]\nport = 65536\n", "2: server.port: Input should be less than or equal to 65535"),
        ("[server]\nslots = true\n", "2: server.slots: must be a number"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_its_reason(text: str, said: str):
    told = mistake(text)
    assert told.startswith(f"outlast.toml:{said}")
    assert "\n" not in told.removesuffix("\n") or "a\n:" in told


@pytest.mark.promise("policy-mistakes-are-named")
@pytest.mark.parametrize(
    ("text", "line"),
    [("a = \n", 1), ("[tools.x]\nrun = 'task'\nrun = 'auto'\n", 3), ("[x\n", 1)],
    ids=["no value", "twice", "no end"],
)
def test_a_fault_of_syntax_is_named_with_its_line(text: str, line: int):
    assert re.fullmatch(
        rf"outlast\.toml: .* \(at (line {line}\b.*|end of document)\)", mistake(text)
    )


@pytest.mark.promise("policy-mistakes-are-named")
@pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["missing", "not UTF-8"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None):
    path = tmp_path / "outlast.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(errors.ConfigurationError, match=re.escape(f"cannot read {path}: ")):
        config.read(path)


@pytest.mark.promise("policy-mistakes-are-named")
def test_a_mistake_stops_the_start_with_one_line(tmp_path: Path):
    (tmp_path / "outlast.toml").write_text(desk_config() + "[tools.x]\nrun = 'often'\n")
    command = [str(Path(sys.executable).with_name("outlast")), "serve", "--config", "outlast.toml"]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    last = len(desk_config().splitlines()) + 2
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"outlast: outlast.toml:{last}: tools.x.run: Input should be")
    assert len(ran.stderr.splitlines()) == 1


def test_a_secret_in_a_wrong_place_is_not_repeated():
    for text in (
        "[server]\nsecret_key = 'hunter2'\n",
        "[server]\ntokens_file = ['hunter2']\n",
        "[upstreams.a]\nurl = 'hunter2'\n",
        "[upstreams.a]\nurl = 'http://x'\nheaders = { Authorization = ['hunter2'] }\n",
    ):
        assert "hunter2" not in mistake(text)


# --- what is right


def test_a_tool_inherits_what_it_does_not_say():
    policies = config.parse(
        "[defaults]\nrun = 'task'\nttl = '2h'\npoll_interval = '1.5s'\n"
        "[tools.a]\nttl = 'unlimited'\nask = 'before'\n"
        "[tools.b]\nrun = 'direct'\non_worker_loss = 'fail'\n",
        "outlast.toml",
    ).policies
    a, b, other = (policies.of(name) for name in ("a", "b", "c"))
    assert (a.run, a.ttl, a.ask, a.poll_interval) == (Run.TASK, None, Ask.BEFORE, 1_500)
    assert (b.run, b.ttl, b.ask, b.on_worker_loss) == (
        *(Run.DIRECT, 7_200_000, Ask.DURING),
        OnWorkerLoss.FAIL,
    )
    assert (other.run, other.ttl) == (Run.TASK, 7_200_000)


def test_an_empty_file_means_the_defaults():
    policy = config.parse("", "outlast.toml").policies.of("any")
    assert (policy.run, policy.ask, policy.grace) == (Run.AUTO, Ask.DURING, 1_000)
    assert (policy.ttl, policy.poll_interval, policy.timeout) == (DAY_MS, 2_000, 1_800_000)
    assert policy.on_worker_loss is OnWorkerLoss.RERUN_IF_SAFE


@pytest.mark.parametrize(
    ("written", "ms"),
    [("250ms", 250), ("2s", 2_000), ("30m", 1_800_000), ("24h", DAY_MS), ("0.5s", 500)],
)
def test_a_duration_is_read_in_every_unit(written: str, ms: int):
    assert config.parse(f"[tools.x]\nttl = '{written}'\n", "f").policies.of("x").ttl == ms


# --- settings


def load(flags: dict[str, Any] | None = None, table: dict[str, Any] | None = None) -> Any:
    return settings.load(flags or {}, table or {})


def test_a_flag_beats_the_environment_and_that_beats_the_file(monkeypatch: pytest.MonkeyPatch):
    assert load().port == 8000
    assert load(table={"port": 1}).port == 1
    monkeypatch.setenv("OUTLAST_PORT", "2")
    assert load(table={"port": 1}).port == 2
    assert load({"port": 3}, {"port": 1}).port == 3
    assert load({"port": None}, {"port": 1}).port == 2
    assert load({"port": 0}, {"port": 1}).port == 0


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("port", ["0", "65535"], ["-1", "65536", "x", "1.5"]),
        ("slots", ["1", "1000"], ["0", "1001", ""]),
        ("watches", ["1"], ["0"]),
        ("watches_per_owner", ["1"], ["0"]),
        ("drain_s", ["0", "3600", "1.5"], ["-0.1", "3601", "nan", "inf"]),
        ("log_level", ["debug", "error"], ["loud", "DEBUG"]),
        ("secret_key", ["k" * 32], ["k" * 31]),
        ("database_url", ["dbname=x"], [""]),
        ("allow_anonymous", ["true", "0"], ["perhaps"]),
        ("require_task_name_header", ["true"], ["perhaps"]),
        ("allowed_hosts", ['["a", "b"]'], ["a,b", "5"]),
        ("allowed_origins", ["[]"], ["a", "{}"]),
    ],
)
def test_each_setting_has_its_limit_and_says_so(
    monkeypatch: pytest.MonkeyPatch, name: str, good: list[str], bad: list[str]
):
    for value in good:
        monkeypatch.setenv(f"OUTLAST_{name.upper()}", value)
        load()
    for value in bad:
        monkeypatch.setenv(f"OUTLAST_{name.upper()}", value)
        with pytest.raises(errors.ConfigurationError, match=name) as caught:
            load()
        assert len(value) < 5 or value not in str(caught.value)


def test_every_setting_is_known_to_file_and_environment_alike():
    assert set(settings.Settings.model_fields) == set(settings.Fields.model_fields)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "127.0.0.1.example.org", ""]
)
def test_beyond_loopback_somebody_must_be_named(host: str, tmp_path: Path):
    with pytest.raises(errors.ConfigurationError, match=r"tokens_file or \[\[identity"):
        load({"host": host})
    plain = {"encrypt": "off"}
    assert load({"host": host}, {"allow_anonymous": True, **plain}).host == host
    assert load({"host": host}, {"tokens_file": str(tmp_path), **plain}).host == host
    assert settings.load({"host": host}, plain, has_issuers=True).host == host


ISSUER = '[identity]\nresource = "https://o.example/mcp"\n[[identity.issuers]]\n'


def test_issuers_are_read_and_what_they_leave_out_is_filled_in():
    text = ISSUER + (
        'issuer = "https://a.example/x"\n[[identity.issuers]]\nissuer = "http://localhost:1"\n'
        'audience = "b"\nalgorithms = ["ES256"]\nclient_claim = "cid"\n'
    )
    given = config.parse(text, "outlast.toml").identity
    assert (given.resource, given.scope_prefix) == ("https://o.example/mcp", "outlast:")
    first, second = given.issuers
    assert (first.audience, first.client_claim, first.jwks_url) == ([], None, None)
    assert first.algorithms == ["RS256", "PS256", "ES256", "EdDSA"]
    assert (second.audience, second.algorithms, second.client_claim) == (["b"], ["ES256"], "cid")


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (ISSUER + 'issuer = "http://a.example"\n', 4, "https"),
        (ISSUER + 'issuer = "https://u:p@a.example"\n', 4, "without a user name"),
        (ISSUER + 'issuer = "a.example"\n', 4, "URL"),
        (ISSUER + 'issuer = "https://a.example"\nalgorithms = ["HS256"]\n', 5, "RS256"),
        (ISSUER + 'issuer = "https://a.example"\nalgorithms = ["none"]\n', 5, "RS256"),
        (ISSUER + 'issuer = "https://a.example"\nalgorithms = []\n', 5, "at least 1"),
        (ISSUER + 'issuer = "https://a.example"\njwks_url = "http://a.example/k"\n', 5, "https"),
        (
            ISSUER + 'issuer = "https://a.example"\n[[identity.issuers]]\nisuer = "x"\n',
            5,
            "issuer: Field required",
        ),
        (ISSUER + 'issuer = "https://a.example"\n' * 1 + 'client_claim = ""\n', 5, "at least 1"),
        ('[identity]\nscope_prefix = "a b"\n', 2, "pattern"),
        ('[identity]\nresource = "https://o.example/mcp?x"\n', 2, "pattern"),
        ('[identity]\n[[identity.issuers]]\nissuer = "https://a.example"\n', 1, "need resource"),
        (
            ISSUER + 'issuer = "https://a.example"\n[[identity.issuers]]\n'
            'issuer = "https://a.example"\n',
            1,
            "twice",
        ),
    ],
)
def test_a_mistake_in_the_identity_section_is_named_with_its_line(
    text: str, line: int, reason: str
):
    with pytest.raises(errors.ConfigurationError, match=rf"^outlast\.toml:{line}: .*{reason}"):
        config.parse(text, "outlast.toml")


KEY_LINE = f"k-1:{'s' * 43}"


def test_beyond_loopback_it_must_be_said_how_to_store():
    beyond = {"host": "0.0.0.0", "allow_anonymous": True}
    with pytest.raises(errors.ConfigurationError, match="run `outlast keys new` and set"):
        load(beyond)
    with pytest.raises(errors.ConfigurationError, match="encrypt is on and there are no data_keys"):
        load(table={"encrypt": "on"})
    assert load(beyond, {"data_keys": [KEY_LINE]}).seals
    assert load(table={"data_keys": [KEY_LINE]}).seals
    assert not load(beyond, {"encrypt": "off"}).seals
    assert not load(beyond, {"encrypt": "off", "data_keys": [KEY_LINE]}).seals
    assert not load().seals


@pytest.mark.parametrize("spelled", ["{0}, {1}", "{0},{1}", '["{0}", "{1}"]', "{0},{1}\n"])
def test_data_keys_are_read_as_they_are_printed_and_as_json(
    monkeypatch: pytest.MonkeyPatch, spelled: str
):
    lines = KEY_LINE, f"k-2:{'t' * 43}"
    monkeypatch.setenv("OUTLAST_DATA_KEYS", spelled.format(*lines))
    assert load().data_keys == list(lines)


@pytest.mark.parametrize(
    "given",
    [f"k:{'s' * 42}", f"k k:{'s' * 43}", "s" * 43, f"{KEY_LINE},{KEY_LINE}", f"{KEY_LINE};x", "[s"],
)
def test_a_data_key_that_is_none_is_refused_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, given: str
):
    monkeypatch.setenv("OUTLAST_DATA_KEYS", given)
    with pytest.raises(errors.ConfigurationError, match="setting data_keys") as caught:
        load()
    error: BaseException | None = caught.value
    while error is not None:
        assert "sss" not in str(error)
        error = error.__cause__
    with pytest.raises(errors.ConfigurationError, match=r"server\.data_keys") as told:
        config.parse(f"[server]\ndata_keys = ['{given}']\n", "f")
    assert "sss" not in str(told.value)


def test_no_representation_of_the_settings_shows_a_data_key():
    assert "sss" not in repr(load(table={"data_keys": [KEY_LINE]}))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_on_loopback_everybody_is_the_one_local_owner(host: str):
    assert load({"host": host}).is_loopback
