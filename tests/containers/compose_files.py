"""The services of a compose file, as far as ours use the format. What nothing here reads is an error."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.tidy.tree import ROOT

FOLDER = ROOT / "conf" / "container"
FILES = sorted(FOLDER.glob("compose*.yaml"))
# What the keys of a service that have no field in Service must be.
HARDENED = {
    "image": "skylark",
    "pull_policy": "never",
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
    "ulimits": {"nofile": {"soft": 65536, "hard": 65536}},
    "restart": "unless-stopped",
    "stop_grace_period": "90s",
    "healthcheck": {
        "test": ["CMD", "skylark", "health"],
        "interval": "5s",
        "timeout": "6s",
        "retries": 3,
        "start_period": "5m",
    },
}
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


@dataclass(frozen=True)
class Service:
    """One container. ``ports``: (address of the machine, its port) → port of the container."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    ports: Mapping[tuple[str, int], int]
    volume: str
    tmpfs: str
    depends_on: list[str]
    in_network_of_machine: bool


@dataclass(frozen=True)
class Compose:
    """A compose file."""

    services: Mapping[str, Service]
    volumes: list[str]
    subnet: str
    gateway: str


def read_compose(path: Path, variables: Mapping[str, str] | None = None) -> Compose:
    """The file with ``${NAME:-default}`` replaced by ``variables``. AssertionError for what is read by nobody."""
    given = variables or {}
    text = _VARIABLE.sub(lambda found: given.get(found[1]) or found[2], path.read_text(encoding="utf-8"))
    assert "${" not in text
    tree: dict[str, Any] = yaml.safe_load(text)
    assert set(tree) - {key for key in tree if key.startswith("x-")} == {"name", "services", "volumes", "networks"}
    (config,) = tree["networks"]["default"]["ipam"]["config"]
    services = {name: _service(name, dict(each)) for name, each in tree["services"].items()}
    return Compose(services, list(tree["volumes"]), config["subnet"], config["gateway"])


def _service(name: str, tree: dict[str, Any]) -> Service:
    for key, value in HARDENED.items():
        assert tree.pop(key) == value, (name, key)
    environment = tree.pop("environment", {})
    assert all(isinstance(value, str) for value in environment.values()), f"{name}: quote what YAML takes for others"
    ports = {}
    for each in tree.pop("ports", []):
        host, outer, inner = each.split(":")
        ports[host, int(outer)] = int(inner)
    (volume,) = tree.pop("volumes", None) or ["none:/var/lib/skylark"]
    assert volume.endswith(":/var/lib/skylark")
    (tmpfs,) = tree.pop("tmpfs", None) or [""]
    network, depends_on = tree.pop("network_mode", ""), tree.pop("depends_on", {})
    assert network in ("", "host")
    assert all(each == {"condition": "service_healthy"} for each in depends_on.values())
    command = tree.pop("command")
    assert tree == {}, f"{name}: read by nobody: {tree}"
    return Service(
        name, command, environment, ports, "" if tmpfs else volume.partition(":")[0], tmpfs, [*depends_on],
        network == "host",
    )  # fmt: skip
