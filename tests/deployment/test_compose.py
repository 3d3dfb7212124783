"""compose.yaml: the specification, and what holds its parts together."""

import ipaddress
import re
from typing import Any

import pytest
import yaml

from outlast.service import config as configuration, secret_files
from outlast.tests.support.deploying import DEPLOY

compose_spec = pytest.importorskip(
    "compose_spec", reason="the package compose-spec has no wheel for this machine"
)

TEXT = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
OURS = ("migrate", "serve-1", "serve-2", "worker-1", "worker-2")
AROUND_S = 15.0  # what a process needs beside drain_s


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load(TEXT)


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return compose["services"]


def merged(text: str) -> str:
    """With its anchors and merges written out: that is YAML's part, not the specification's."""
    return yaml.safe_dump(yaml.safe_load(text))


def test_the_specification_accepts_it_and_would_refuse_a_broken_one():
    compose_spec.PyCompose.from_yaml(merged(TEXT))
    for right, wrong in (
        ("read_only: true", "read_onyl: true"),
        ("condition: service_healthy", "condition: service_is_well"),
    ):
        assert right in TEXT
        with pytest.raises(ValueError, match=r"\w"):
            compose_spec.PyCompose.from_yaml(merged(TEXT.replace(right, wrong)))


def test_the_parts_are_there(services: dict[str, dict[str, Any]]):
    assert set(services) == {"postgres", "proxy", *OURS}
    for name, words in {
        "migrate": ["db", "upgrade"],
        "serve-1": ["serve", "--no-work"],
        "serve-2": ["serve", "--no-work"],
        "worker-1": ["worker"],
        "worker-2": ["worker"],
    }.items():
        assert services[name]["command"][: len(words)] == words


@pytest.mark.parametrize("name", [*OURS, "proxy"])
def test_nothing_of_it_is_root_or_writes_to_its_image(
    name: str, services: dict[str, dict[str, Any]]
):
    service = services[name]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_images_are_pinned(services: dict[str, dict[str, Any]]):
    for name, service in services.items():
        tag = service["image"].rpartition(":")[2]
        assert name in OURS or re.match(r"\d+\.\d+", tag), service["image"]


def test_migrations_are_done_once_and_before(services: dict[str, dict[str, Any]]):
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in OURS[1:]:
        waits = services[name]["depends_on"]
        assert waits == {"migrate": {"condition": "service_completed_successfully"}}


def test_secrets_come_by_files_alone(compose: dict[str, Any], services: dict[str, dict[str, Any]]):
    variables = {secret_files.variable_of(name) for name in secret_files.NAMES}
    for name in OURS:
        given = services[name]["environment"]
        paths = {key: value for key, value in given.items() if key.endswith("_FILE")}
        assert set(paths) <= variables
        figures = {"OUTLAST_WORKER_PORT"} if name.startswith("worker-") else set[str]()
        assert set(given) - set(paths) == {"OUTLAST_HOST", *figures}
        for path in paths.values():
            assert path.removeprefix("/run/secrets/") in services[name]["secrets"]
    for name, secret in compose["secrets"].items():
        assert secret == {"file": f"./secrets/{name}"}
    used = {secret for service in services.values() for secret in service.get("secrets", ())}
    assert used == set(compose["secrets"])


def test_the_images_health_check_finds_workers_too(services: dict[str, dict[str, Any]]):
    [looked_at] = re.findall(r"'OUTLAST_PORT', '(\d+)'", (DEPLOY / "Dockerfile").read_text())
    for name in ("worker-1", "worker-2"):
        assert "healthcheck" not in services[name]
        assert services[name]["environment"]["OUTLAST_WORKER_PORT"] == looked_at


def test_the_proxy_knows_where_each_server_is(services: dict[str, dict[str, Any]]):
    conf = (DEPLOY / "nginx.conf").read_text()
    named = {name for name, _ in re.findall(r"server (serve-\d+):(8000)", conf)}
    known = dict(entry.split(":", 1) for entry in services["proxy"]["extra_hosts"])
    fixed = {
        name: services[name]["networks"]["inside"]["ipv4_address"]
        for name in services
        if name.startswith("serve-")
    }
    assert named == set(known)
    assert known == fixed


def test_no_other_service_can_get_the_address_of_a_server(
    compose: dict[str, Any], services: dict[str, dict[str, Any]]
):
    [pool] = compose["networks"]["inside"]["ipam"]["config"]
    others, whole = ipaddress.ip_network(pool["ip_range"]), ipaddress.ip_network(pool["subnet"])
    for name in ("serve-1", "serve-2"):
        address = ipaddress.ip_address(services[name]["networks"]["inside"]["ipv4_address"])
        assert address in whole
        assert address not in others


def test_only_the_proxy_is_reached_from_outside(services: dict[str, dict[str, Any]]):
    assert [name for name in services if "ports" in services[name]] == ["proxy"]
    assert all(port.startswith("127.0.0.1:") for port in services["proxy"]["ports"])


def test_the_grace_period_is_longer_than_the_drain(services: dict[str, dict[str, Any]]):
    config = configuration.read(DEPLOY / "outlast.toml", {})
    for name in OURS[1:]:
        grace_s = float(services[name]["stop_grace_period"].removesuffix("s"))
        assert grace_s >= config.server["drain_s"] + AROUND_S
    assert set(config.upstreams) == {"ci"}
