"""The manifests of deploy/kubernetes as kubectl renders them, and what a pod of them would run."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import yaml

from skylark.mqcommon.options.environment import options_class
from tests.tidy.tree import ROOT

DEPLOY = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("single", "2m-2s", "controller")
COMPONENTS = ("secure", "monitoring")
#: What is rendered: each overlay as it is, and those for production with all components.
VARIANTS: list[tuple[str, tuple[str, ...]]] = [
    *((overlay, ()) for overlay in OVERLAYS),
    *((overlay, COMPONENTS) for overlay in OVERLAYS[1:]),
]
IDS = [f"{overlay}-{'all' if components else 'plain'}" for overlay, components in VARIANTS]
WORKLOADS = ("StatefulSet", "Deployment")
#: The variables that the image sets: conf/container/Containerfile.
OF_IMAGE = {"SKYLARK_BIND_ADDRESS": "0.0.0.0", "SKYLARK_HEALTH_HOST": "0.0.0.0", "SKYLARK_HEALTH_PORT": "8090"}

Doc = dict[str, Any]


def kubectl() -> str:
    """The program that scripts/setup puts into the environment."""
    found = sorted(Path(sys.prefix).glob("kubectl/kubectl-*"))
    if not found:
        pytest.skip("no kubectl in this environment: scripts/setup puts it there")
    return str(found[-1])


@cache
def rendered(overlay: str, components: tuple[str, ...] = ()) -> list[Doc]:
    """All objects of an overlay, as `kubectl apply -k` would send them."""
    with TemporaryDirectory() as folder:
        # kustomize takes bases by relative paths only.
        at = os.path.relpath(DEPLOY, os.path.realpath(folder))
        lines = [
            "resources:",
            f"- {at}/{overlay}",
            "components:",
            *(f"- {at}/components/{name}" for name in components),
        ]
        if not components:
            lines = lines[:2]
        (Path(folder) / "kustomization.yaml").write_text("\n".join(lines))
        done = subprocess.run([kubectl(), "kustomize", folder], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.load_all(done.stdout, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def of_kind(docs: list[Doc], *kinds: str) -> list[Doc]:
    return [doc for doc in docs if doc["kind"] in kinds]


def name_of(doc: Doc) -> str:
    name: str = doc["metadata"]["name"]
    return name


class Pod(NamedTuple):
    """One pod of a rendered workload: its container with the variables of the pod put in."""

    name: str
    workload: Doc
    #: Path → text of the mounted conf files.
    files: dict[str, str]
    command: list[str]
    #: Variables with a value in the manifest; those of Secrets are not among them.
    environ: dict[str, str]

    @property
    def daemon(self) -> str:
        return self.command[0]

    @property
    def container(self) -> Doc:
        (container,) = self.workload["spec"]["template"]["spec"]["containers"]
        found: Doc = container
        return found

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.workload["spec"]["template"]["metadata"]["labels"]
        return found

    @property
    def options_class(self) -> type[Any]:
        return options_class(self.daemon)

    @property
    def conf(self) -> str:
        """The path of its conf file."""
        return self.command[self.command.index("-c") + 1]

    @property
    def ports(self) -> dict[str, int]:
        return {each["name"]: each["containerPort"] for each in self.container["ports"]}

    @property
    def writable(self) -> list[str]:
        return [each["mountPath"] for each in self.container["volumeMounts"] if not each.get("readOnly")]


def pods(docs: list[Doc], ip: str = "10.0.0.1") -> Iterator[Pod]:
    """Each pod of the StatefulSets, and one of each Deployment."""
    maps = {name_of(doc): doc["data"] for doc in of_kind(docs, "ConfigMap")}
    for workload in of_kind(docs, *WORKLOADS):
        spec = workload["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        volumes = {each["name"]: each for each in spec.get("volumes", [])}
        files = {
            f"{mount['mountPath']}/{key}": text
            for mount in container["volumeMounts"]
            if "configMap" in volumes.get(mount["name"], {})
            for key, text in maps[volumes[mount["name"]]["configMap"]["name"]].items()
        }
        count = workload["spec"]["replicas"] if workload["kind"] == "StatefulSet" else 1
        for number in range(count):
            name = f"{name_of(workload)}-{number}"
            values = {"metadata.name": name, "status.podIP": ip}
            environ = {each["name"]: _value(each, values) for each in container.get("env", [])}
            yield Pod(name, workload, files, [_with(environ, word) for word in container["args"]], environ)


def _with(environ: dict[str, str], word: str) -> str:
    return re.sub(r"\$\((\w+)\)", lambda found: environ[found[1]], word)


def _value(variable: Doc, of_pod: dict[str, str]) -> str:
    value: str = variable["value"] if "value" in variable else of_pod[variable["valueFrom"]["fieldRef"]["fieldPath"]]
    return value
