"""Each port, path, key, command and name in the rendered manifests exists: in the product, or in the manifests."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.options import BrokerOptions
from skylark.cli.main import skylark
from skylark.mqadmin.securing import (
    KUBERNETES_NAMESRV,
    KUBERNETES_SERVICES,
    KUBERNETES_TLS,
    Secrets,
    kubernetes_secrets,
)
from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.options.conf_file import load_conf
from skylark.mqcommon.options.fields import options_of
from skylark.remoting.metrics.health import HEALTH_PAGES
from tests.deploy.rendering import (
    COMPONENTS,
    DEPLOY,
    IDS,
    OF_IMAGE,
    OVERLAYS,
    VARIANTS,
    WORKLOADS,
    Doc,
    Pod,
    name_of,
    of_kind,
    pods,
    rendered,
)
from tests.tidy.tree import ROOT

# Port of a container → the option with its number, by daemon.
PORTS = {
    "namesrv": {"remoting": "listen_port", "metrics": "metrics_prom_exporter_port"},
    "broker": {"remoting": "listen_port", "fast": "fast_port", "metrics": "metrics_prom_exporter_port"},
    "proxy": {"grpc": "grpc_server_port", "metrics": "metrics_prom_exporter_port"},
    "console": {"http": "listen_port"},
    "controller": {},
}
ADDRESSES = ("namesrvAddr", "controllerAddr", "controllerDLegerPeers")
# Options with directories and files that a daemon writes.
WRITTEN = ("store_path_root_dir", "kv_config_path", "controller_dir")
# Variables of tools, which are no options of a daemon.
OF_TOOLS = {"NAMESRV_ADDR", "ROCKETMQ_TLS_CONFIG", "ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY"}
OF_MANIFESTS = {"POD_NAME", "POD_IP"}

each_variant = pytest.mark.parametrize(("overlay", "components"), VARIANTS, ids=IDS)


def secrets_of_mqadmin() -> dict[str, dict[str, str]]:
    """Name of a Secret → its keys and texts, as `mqadmin secureCluster --kubernetes` writes them."""
    items = json.loads(kubernetes_secrets(Secrets("r", "i", "s"), {"tls.properties": ""}))["items"]
    return {each["metadata"]["name"]: each["stringData"] for each in items}


def options_of_pod(pod: Pod, folder: Path) -> Any:
    """The options with which the pod's daemon would run. ConfigError for a key, a variable or a value that is wrong."""
    conf = folder / pod.conf.lstrip("/").replace("/", "-")
    conf.write_text(pod.files[pod.conf], encoding="utf-8")
    arguments = pod.command[1:]
    arguments[arguments.index("-c") + 1] = str(conf)
    command = skylark.get_command(skylark.make_context("skylark", ["--help"], resilient_parsing=True), pod.daemon)
    assert command is not None
    # Parsed as the command line of the product, which knows its flags.
    given = command.make_context(pod.daemon, arguments).params
    flags = {o.name: str(given[o.name]) for o in options_of(pod.options_class) if given.get(o.name) is not None}
    warnings: list[str] = []
    secrets = secrets_of_mqadmin()
    from_secrets = {
        name: text
        for each in pod.container.get("envFrom", [])
        for name, text in secrets[each["secretRef"]["name"]].items()
    }
    environ = OF_IMAGE | from_secrets | pod.environ
    options = load_conf(pod.options_class, conf, flags, environ=environ, warnings=warnings)
    assert warnings == []
    return options


@each_variant
def test_daemons_start_with_their_conf_files_and_use_the_ports(
    overlay: str, components: tuple[str, ...], tmp_path: Path
) -> None:
    for pod in pods(rendered(overlay, components)):
        options = options_of_pod(pod, tmp_path)
        wanted = {name: getattr(options, field) for name, field in PORTS[pod.daemon].items()} | {"health": 8090}
        if pod.daemon == "broker":
            wanted["slaves"] = options.listen_port + 1
        if pod.daemon == "controller":
            wanted["controller"] = split_address(options.controller_peers[options.controller_d_leger_self_id])[1]
        assert pod.ports == wanted
        assert (options.health_port, options.health_host) == (8090, "0.0.0.0")
        if "metrics" in wanted:
            assert (options.metrics_exporter_type, options.metrics_prom_exporter_host) == ("PROM", "0.0.0.0")
        assert options.log_format == "json" and not options.log_file


@each_variant
def test_what_a_daemon_writes_is_on_a_volume(overlay: str, components: tuple[str, ...], tmp_path: Path) -> None:
    for pod in pods(rendered(overlay, components)):
        options = options_of_pod(pod, tmp_path)
        assert pod.writable == ["/var/lib/skylark"], "the home of the image's user"
        for field in WRITTEN:
            path = getattr(options, field, None)
            if path is not None and not (pod.daemon == "namesrv" and field == "controller_dir"):
                # A folder of the volume: a file system's root may have lost+found in it.
                assert Path(path).parent == Path("/var/lib/skylark")


@each_variant
def test_probes_ask_pages_that_exist(overlay: str, components: tuple[str, ...]) -> None:
    for pod in pods(rendered(overlay, components)):
        probes = {name: pod.container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
        healthy, ready = HEALTH_PAGES
        assert {name: each["path"] for name, each in probes.items()} == {
            "startupProbe": healthy,
            "livenessProbe": healthy,
            "readinessProbe": ready,
        }
        assert {each["port"] for each in probes.values()} == {"health"}


@each_variant
def test_a_stop_has_the_time_that_it_takes(overlay: str, components: tuple[str, ...], tmp_path: Path) -> None:
    for pod in pods(rendered(overlay, components)):
        grace_s = pod.workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        pause_s = pod.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        calls_s = options_of_pod(pod, tmp_path).grpc_shutdown_time_seconds if pod.daemon == "proxy" else 0
        assert grace_s >= pause_s + calls_s + 15
        # Connections come through a Service, which needs a moment to notice.
        assert (pause_s > 0) is (pod.daemon in ("namesrv", "proxy"))


@each_variant
def test_addresses_in_conf_files_are_services_and_pods(
    overlay: str, components: tuple[str, ...], tmp_path: Path
) -> None:
    docs = rendered(overlay, components)
    services = {name_of(doc): {each["port"] for each in doc["spec"]["ports"]} for doc in of_kind(docs, "Service")}
    headless = {
        f"{pod.name}.{pod.workload['spec']['serviceName']}"
        for pod in pods(docs)
        if pod.workload["kind"] == "StatefulSet"
    }
    found = 0
    for pod in pods(docs):
        texts = [
            line.partition("=")[2] for line in pod.files[pod.conf].splitlines() if line.partition("=")[0] in ADDRESSES
        ]
        for addr in (
            addr for text in [*texts, pod.environ.get("NAMESRV_ADDR", "")] for addr in text.split(";") if addr
        ):
            host, port = split_address(re.sub(r"^n\d-", "", addr))
            assert host in services or host in headless, f"{pod.name}: {addr}"
            assert port in services[host.rpartition(".")[2]]
            found += 1
    assert found >= len(list(pods(docs))) - 3


def selectors(docs: list[Doc]) -> Iterator[tuple[str, dict[str, str], bool]]:
    """Who selects pods, by which labels, and whether only pods of a set are meant by it."""
    for doc in docs:
        name, spec = f"{doc['kind']} {name_of(doc)}", doc.get("spec", {})
        if doc["kind"] == "Service":
            yield name, spec["selector"], False
        elif doc["kind"] == "NetworkPolicy":
            yield name, spec["podSelector"]["matchLabels"], False
        elif doc["kind"] in ("PodDisruptionBudget", "PodMonitor"):
            yield name, spec["selector"]["matchLabels"], False
        elif doc["kind"] in WORKLOADS:
            yield name, spec["selector"]["matchLabels"], True
            pod = spec["template"]["spec"]
            for spread in pod.get("topologySpreadConstraints", []):
                yield name, spread["labelSelector"]["matchLabels"], True
            for terms in pod.get("affinity", {}).get("podAntiAffinity", {}).values():
                for term in terms:
                    yield name, term.get("podAffinityTerm", term)["labelSelector"]["matchLabels"], True


@each_variant
def test_selectors_select(overlay: str, components: tuple[str, ...]) -> None:
    docs = rendered(overlay, components)
    workloads = of_kind(docs, *WORKLOADS)
    for who, labels, own_only in selectors(docs):
        chosen = [doc for doc in workloads if labels.items() <= doc["spec"]["template"]["metadata"]["labels"].items()]
        assert chosen, who
        if own_only:
            assert [f"{doc['kind']} {name_of(doc)}" for doc in chosen] == [who]


@each_variant
def test_services_and_network_policies_name_ports(overlay: str, components: tuple[str, ...]) -> None:
    docs = rendered(overlay, components)
    opened: dict[str, set[str]] = {}
    for doc in of_kind(docs, "Service", "NetworkPolicy"):
        spec = doc["spec"]
        labels = spec["selector"] if doc["kind"] == "Service" else spec["podSelector"]["matchLabels"]
        chosen = [pod for pod in pods(docs) if labels.items() <= pod.labels.items()]
        if doc["kind"] == "Service":
            for port in spec["ports"]:
                assert {pod.ports[port["targetPort"]] for pod in chosen} == {port["port"]}
            continue
        for port in (port["port"] for rule in spec.get("ingress", []) for port in rule["ports"]):
            assert any(port in pod.ports for pod in chosen), f"{name_of(doc)}: {port}"
            for pod in chosen:
                opened.setdefault(pod.name, set()).add(port)
    assert [name_of(doc) for doc in of_kind(docs, "NetworkPolicy") if "ingress" not in doc["spec"]] == ["nobody"]
    # The kubelet asks for health, and only port-forward reaches the console.
    for pod in pods(docs):
        assert opened.get(pod.name, set()) >= pod.ports.keys() - {"health", "http"}, pod.name


@each_variant
def test_each_pod_has_an_account_without_rights(overlay: str, components: tuple[str, ...]) -> None:
    for pod in pods(rendered(overlay, components)):
        spec, container = pod.workload["spec"]["template"]["spec"], pod.container
        assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
        user = spec["securityContext"]
        assert (user["runAsNonRoot"], user["runAsUser"], user["fsGroup"]) == (True, 10001, 10001), "the image's user"
        assert user["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert container["resources"]["limits"].keys() == {"memory"}


def test_brokers_are_who_they_should_be(tmp_path: Path) -> None:
    found = {}
    for overlay in OVERLAYS:
        brokers = [options_of_pod(pod, tmp_path) for pod in pods(rendered(overlay)) if pod.daemon == "broker"]
        assert all(isinstance(broker, BrokerOptions) and broker.broker_ip1 == "10.0.0.1" for broker in brokers)
        found[overlay] = [
            (each.broker_name, each.broker_id, each.broker_role, each.enable_controller_mode) for each in brokers
        ]
    assert found == {
        "single": [("broker", 0, "ASYNC_MASTER", False)],
        "2m-2s": [
            ("broker-a", 0, "SYNC_MASTER", False),
            ("broker-a", 1, "SLAVE", False),
            ("broker-b", 0, "SYNC_MASTER", False),
            ("broker-b", 1, "SLAVE", False),
        ],
        "controller": [("broker-a", -1, "ASYNC_MASTER", True)] * 3,
    }


def test_controllers_know_each_other(tmp_path: Path) -> None:
    docs = rendered("controller")
    controllers = [options_of_pod(pod, tmp_path) for pod in pods(docs) if pod.daemon == "controller"]
    (peers,) = {tuple(each.controller_peers.items()) for each in controllers}
    assert (
        [each.controller_d_leger_self_id for each in controllers] == [name for name, _ in peers] == ["n0", "n1", "n2"]
    )
    assert [addr for _, addr in peers] == [f"controller-{number}.controller:9877" for number in range(3)]
    for pod in pods(docs):
        if pod.daemon == "broker":
            assert options_of_pod(pod, tmp_path).controller_addrs == [addr for _, addr in peers]


def test_brokers_do_not_restart_before_somebody_says_so() -> None:
    """Two sets would restart at the same time, or a set beside its Controllers."""
    for overlay in OVERLAYS[1:]:
        sets = [doc["spec"] for doc in of_kind(rendered(overlay), "StatefulSet") if name_of(doc).startswith("broker")]
        for spec in sets:
            assert spec["updateStrategy"]["rollingUpdate"]["partition"] == spec["replicas"]


def test_one_budget_is_for_the_brokers_of_both_sets() -> None:
    budgets = [name_of(doc) for doc in of_kind(rendered("2m-2s"), "PodDisruptionBudget")]
    assert budgets.count("broker") == 1


def test_secrets_are_those_that_mqadmin_makes() -> None:
    named = set()
    for pod in pods(rendered("controller", COMPONENTS)):
        spec = pod.workload["spec"]["template"]["spec"]
        named |= {each["secretRef"]["name"] for each in pod.container["envFrom"]}
        (secret,) = [each["secret"] for each in spec["volumes"] if "secret" in each]
        named.add(secret["secretName"])
        # Root's, for the group of the pod: the mode that mqcommon/disk/secret_file.py takes.
        assert secret["defaultMode"] == 0o440
        (mount,) = [each for each in pod.container["volumeMounts"] if each["name"] == "tls"]
        assert mount["mountPath"] == KUBERNETES_TLS
        assert f"{KUBERNETES_TLS}/tls.properties" in pod.environ.values()
    assert named == secrets_of_mqadmin().keys()
    services = {name_of(doc) for doc in of_kind(rendered("controller"), "Service")}
    assert {*KUBERNETES_SERVICES, split_address(KUBERNETES_NAMESRV)[0]} <= services


@each_variant
def test_variables_are_those_of_a_daemon_or_a_tool(overlay: str, components: tuple[str, ...]) -> None:
    for pod in pods(rendered(overlay, components)):
        others = {name for name in pod.environ if not name.startswith("SKYLARK_")}
        assert others <= OF_TOOLS | OF_MANIFESTS
        # A key of the conf file would win over a variable.
        keys = {line.partition("=")[0] for line in pod.files[pod.conf].splitlines()}
        assert not {o.key for o in options_of(pod.options_class) if o.variable in pod.environ} & keys


@each_variant
def test_memory_limits_are_above_what_clients_can_make_a_daemon_hold(
    overlay: str, components: tuple[str, ...], tmp_path: Path
) -> None:
    for pod in pods(rendered(overlay, components)):
        limit = _bytes(pod.container["resources"]["limits"]["memory"])
        assert limit >= getattr(options_of_pod(pod, tmp_path), "max_buffered_bytes", 0) + 64 * 1024 * 1024
        assert _bytes(pod.container["resources"]["requests"]["memory"]) <= limit


def _bytes(quantity: str) -> int:
    return int(quantity[:-2]) << {"Mi": 20, "Gi": 30}[quantity[-2:]]


def test_the_page_names_what_is_there() -> None:
    page = (ROOT / "docs" / "operate" / "kubernetes.md").read_text(encoding="utf-8")
    docs = [doc for overlay in OVERLAYS for doc in rendered(overlay)]
    there = {f"{doc['kind'].lower()}/{name_of(doc)}" for doc in docs}
    shown = set(re.findall(r"\b(?:statefulset|deployment)/[\w-]+", page.replace("$set", "broker")))
    assert shown and shown <= there
    paths = re.findall(r"(?:deploy/kubernetes/|`)((?:base|broker|components|controller|single|2m-2s)\b[\w/-]*)", page)
    assert len(paths) > 8 and [path for path in paths if not (DEPLOY / path).exists()] == []
    claims = {
        f"{claim['metadata']['name']}-{name_of(doc)}"
        for doc in of_kind(docs, "StatefulSet")
        for claim in doc["spec"]["volumeClaimTemplates"]
    }
    assert {name.rpartition("-")[0] for name in re.findall(r"`(data-[\w-]+)`", page)} <= claims
