"""The Helm chart: Helm's own linter and renderer, and the schemas of Kubernetes."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from outlast.service import config as configuration, secret_files
from outlast.tests.support.deploying import DEPLOY

helm = pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this machine")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

CHART = DEPLOY / "chart"
KUBERNETES = "1.33"
Document = dict[str, Any]
FULL = {
    "ingress": {"enabled": True, "className": "nginx", "tlsSecretName": "outlast-tls"},
    "serve": {"autoscaling": {"enabled": True}},
    "networkPolicy": {"from": [{"namespaceSelector": {}}]},
    "env": [{"name": "UPSTREAM_TOKEN", "value": "from elsewhere"}],
}
WARNING = 2


def rendered(values: Document | None = None, chart: Path = CHART) -> list[Document]:
    """Every document that the chart makes."""
    with helm.Chart.load(chart) as loaded:
        files = loaded.render(values, name="outlast", namespace="mcp")
    texts = (text for name, text in files.items() if name.endswith(".yaml"))
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def of_kind(kind: str, values: Document | None = None) -> dict[str, Document]:
    found = (one for one in rendered(values) if one["kind"] == kind)
    return {one["metadata"]["name"]: one for one in found}


def pods(values: Document | None = None) -> Iterator[tuple[str, Document]]:
    for one in rendered(values):
        if one["kind"] in {"Deployment", "Job"}:
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A chart to break."""
    return Path(shutil.copytree(CHART, tmp_path / "outlast"))


def complaints(chart: Path, values: Document | None = None) -> list[str]:
    report = helm.lint(chart, values, strict=True)
    found = [one["error"] for one in report["messages"] if one["severity"] >= WARNING]
    return found + report["errors"]


@pytest.mark.parametrize("values", [None, FULL], ids=["plain", "full"])
def test_helm_finds_nothing(values: Document | None):
    assert complaints(CHART, values) == []


def test_helm_would_find_a_broken_template(copy: Path):
    file = copy / "templates" / "service.yaml"
    file.write_text(file.read_text().replace('include "outlast.name"', 'include "outlast.nmae"'))
    assert complaints(copy)


def test_a_value_that_there_is_not_is_refused():
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(FULL)
        for wrong in ({"replica": 3}, {"serve": {"replicas": "two"}}, {"secret": {"keys": []}}):
            with pytest.raises(helm.HelmError):
                chart.validate_schema(wrong)


@pytest.mark.parametrize("values", [None, FULL], ids=["plain", "full"])
def test_kubernetes_would_take_every_document(values: Document | None):
    documents = rendered(values)
    for document in documents:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    broken = next(one for one in documents if one["kind"] == "Deployment")
    broken["spec"]["template"]["spec"]["containers"][0]["readOnlyRoot"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES, strict=True)


def test_the_parts_are_there():
    kinds = sorted(one["kind"] for one in rendered(FULL))
    assert kinds == sorted(
        [
            *("Deployment", "Deployment", "Service", "Ingress", "ConfigMap", "Job"),
            *("PodDisruptionBudget", "PodDisruptionBudget", "HorizontalPodAutoscaler"),
            *("NetworkPolicy", "NetworkPolicy"),
        ]
    )
    assert not {"Ingress", "HorizontalPodAutoscaler"} & {one["kind"] for one in rendered()}


def test_every_pod_is_locked_down():
    for name, pod in pods(FULL):
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]


def test_servers_and_workers_are_probed_and_a_drain_has_its_time():
    values = {"drainSeconds": 90}
    for name, pod in pods(values):
        if name.endswith("-migrate"):
            continue
        [container] = pod["containers"]
        env = {one["name"]: one.get("value") for one in container["env"]}
        assert env["OUTLAST_DRAIN_S"] == "90"
        assert pod["terminationGracePeriodSeconds"] >= 90 + 15
        setting = "OUTLAST_PORT" if name.endswith("-serve") else "OUTLAST_WORKER_PORT"
        assert container["ports"] == [{"name": "http", "containerPort": int(env[setting] or 0)}]
        paths = {
            probe: container[f"{probe}Probe"]["httpGet"]["path"]
            for probe in ("startup", "liveness", "readiness")
        }
        assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}


def test_migrations_come_before_anything_else_and_need_no_other_object():
    [job] = of_kind("Job").values()
    hooks = job["metadata"]["annotations"]["helm.sh/hook"].split(",")
    assert set(hooks) == {"pre-install", "pre-upgrade"}
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == ["db", "upgrade"]
    assert not [volume for volume in pod["volumes"] if "configMap" in volume]


def test_secrets_are_referenced_and_never_rendered():
    assert not of_kind("Secret")
    variables = {secret_files.variable_of(name) for name in secret_files.NAMES}
    for _, pod in pods():
        for one in pod["containers"][0]["env"]:
            if one["name"].endswith("_FILE") and one["name"] != "OUTLAST_TOKENS_FILE":
                assert one["name"] in variables
                assert one["value"].startswith("/run/secrets/")


def test_what_selects_pods_finds_them():
    labels = [
        one["spec"]["template"]["metadata"]["labels"]
        for one in rendered(FULL)
        if one["kind"] == "Deployment"
    ]
    selectors = [one["spec"]["selector"] for one in of_kind("Service").values()]
    selectors += [
        one["spec"]["selector"]["matchLabels"] for one in of_kind("PodDisruptionBudget").values()
    ]
    selectors += [
        one["spec"]["podSelector"]["matchLabels"] for one in of_kind("NetworkPolicy").values()
    ]
    for selector in selectors:
        assert any(selector.items() <= given.items() for given in labels), selector


def test_the_autoscaler_and_a_fixed_number_exclude_each_other():
    assert of_kind("Deployment")["outlast-serve"]["spec"]["replicas"] == 2
    assert "replicas" not in of_kind("Deployment", FULL)["outlast-serve"]["spec"]


def test_the_configuration_is_one_that_is_accepted_and_a_change_makes_new_pods():
    [mapped] = of_kind("ConfigMap").values()
    assert configuration.parse(mapped["data"]["outlast.toml"], "the chart's").upstreams
    changed = {"config": '[upstreams.other]\nurl = "https://other.example/mcp"\n'}
    for name in ("outlast-serve", "outlast-worker"):
        before, after = (
            of_kind("Deployment", values)[name]["spec"]["template"]["metadata"]["annotations"]
            for values in (None, changed)
        )
        assert before != after
