"""Every rendered object fits the schema of Kubernetes' API, for two versions. Operators' kinds have own tests."""

import json
from functools import cache

import pytest
import yaml

from skylark.mqcommon.version import VERSION
from tests.deploy.rendering import COMPONENTS, DEPLOY, IDS, VARIANTS, Doc, name_of, of_kind, pods, rendered
from tests.tidy.tree import ROOT

kubernetes_validate = pytest.importorskip("kubernetes_validate")
utils = pytest.importorskip("kubernetes_validate.utils")

# The oldest version with the preStop sleep switched on, which docs/operate/kubernetes.md names, and a new one.
VERSIONS = ("1.30", "1.35")
MONITORING = "monitoring.coreos.com/v1"


@pytest.fixture(autouse=True)
def schemas_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library reads a file of definitions, 1 MB, for each object."""
    monkeypatch.setattr(utils, "schema_contents", SCHEMAS)


SCHEMAS = cache(utils.schema_contents)


def check(doc: Doc, version: str) -> None:
    """Raises when the object does not fit, or when there is no schema."""
    assert kubernetes_validate.validate(doc, version, strict=True) == version


@pytest.mark.parametrize("version", VERSIONS)
def test_all_objects_fit(version: str) -> None:
    docs = [doc for overlay, components in VARIANTS for doc in rendered(overlay, components)]
    unique = {json.dumps(doc, sort_keys=True): doc for doc in docs if doc["apiVersion"] != MONITORING}
    assert len(unique) >= 45
    for doc in unique.values():
        check(doc, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_key_that_the_api_does_not_have_is_found(version: str) -> None:
    (budget,) = [doc for doc in of_kind(rendered("single"), "PodDisruptionBudget") if name_of(doc) == "proxy"]
    with pytest.raises(kubernetes_validate.ValidationError, match="maxAvailable"):
        check({**budget, "spec": {**budget["spec"], "maxAvailable": 1}}, version)
    with pytest.raises(utils.SchemaNotFoundError):
        check({**budget, "kind": "PodDisruptionBudgets"}, version)


def test_rules_and_dashboard_are_those_of_conf() -> None:
    docs = rendered("controller", COMPONENTS)
    (rule,) = of_kind(docs, "PrometheusRule")
    alerts = yaml.safe_load((ROOT / "conf" / "metrics" / "skylark-alerts.yml").read_text(encoding="utf-8"))
    assert rule["apiVersion"] == MONITORING and rule["spec"] == alerts
    (dashboard,) = [doc for doc in of_kind(docs, "ConfigMap") if name_of(doc) == "skylark-dashboard"]
    text = (ROOT / "conf" / "metrics" / "skylark-dashboard.json").read_text(encoding="utf-8")
    assert dashboard["data"] == {"skylark-dashboard.json": text}


def test_prometheus_finds_each_daemon_with_metrics() -> None:
    docs = rendered("controller", COMPONENTS)
    (monitor,) = of_kind(docs, "PodMonitor")
    assert monitor["apiVersion"] == MONITORING
    assert monitor.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert monitor["spec"].keys() == {"jobLabel", "selector", "podMetricsEndpoints"}
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint.keys() == {"port", "path", "interval"} and endpoint["path"] == "/metrics"
    wanted: dict[str, str] = monitor["spec"]["selector"]["matchLabels"]
    chosen = [pod for pod in pods(docs) if wanted.items() <= pod.labels.items()]
    assert {pod.daemon for pod in chosen if endpoint["port"] in pod.ports} == {"namesrv", "broker", "proxy"}
    # the alerts ask for the label job
    assert {pod.labels[monitor["spec"]["jobLabel"]] for pod in pods(docs)} == {"skylark"}


@pytest.mark.parametrize(("overlay", "components"), VARIANTS, ids=IDS)
def test_the_image_is_of_this_version(overlay: str, components: tuple[str, ...]) -> None:
    assert {pod.container["image"] for pod in pods(rendered(overlay, components))} == {f"skylark:{VERSION}"}


def test_no_file_is_left_over() -> None:
    """Each file of deploy/kubernetes is named in a kustomization."""
    listed = set()
    for file in DEPLOY.rglob("kustomization.yaml"):
        made = yaml.safe_load(file.read_text(encoding="utf-8"))
        names = [*made.get("resources", []), *(each["path"] for each in made.get("patches", []) if "path" in each)]
        for generated in made.get("configMapGenerator", []):
            names += [each.rpartition("=")[2] for each in generated["files"]]
        listed |= {(file.parent / name).resolve() for name in [*names, "kustomization.yaml"]}
    there = {path.resolve() for path in DEPLOY.rglob("*") if path.is_file()}
    assert there - listed == set()
