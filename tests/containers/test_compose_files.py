"""The compose files name what exists: commands, keys, ports, names of services. Their options start the daemons."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.identity import resolved
from skylark.cli.main import skylark
from skylark.mqcommon.addresses import parse_advertised
from skylark.mqcommon.options.conf_file import load_conf
from skylark.mqcommon.options.environment import DAEMONS, options_class, variables_of
from skylark.mqcommon.options.fields import options_of
from tests.containers.compose_files import FILES, FOLDER, Compose, Service, read_compose
from tests.tidy.tree import ROOT

CONTAINERFILE = (FOLDER / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
INSTRUCTIONS = {
    *("ARG", "FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE"),
    *("STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"),
}
# The options that have the ports of a daemon, and what the console is told by another program's variable.
PORTS = {
    "namesrv": ("listen_port",),
    "broker": ("listen_port",),
    "proxy": ("grpc_server_port",),
    "console": ("listen_port",),
}
OTHER_VARIABLES = {"console": {"NAMESRV_ADDR"}}


def image_environment() -> dict[str, str]:
    found = re.findall(r"(SKYLARK_\w+)=(\S+)", "\n".join(re.findall(r"^ENV .*$", CONTAINERFILE, re.MULTILINE)))
    return dict(found)


def options_in(service: Service, warnings: list[str] | None = None) -> Any:
    environ = {**image_environment(), **service.environment}
    options = load_conf(options_class(service.command[0]), environ=environ, warnings=warnings)
    return resolved(options) if service.command == ["broker"] else options


def all_services() -> Iterator[tuple[Compose, Service]]:
    for path in FILES:
        compose = read_compose(path)
        for service in compose.services.values():
            yield compose, service


def test_the_three_files_are_there() -> None:
    assert [path.name for path in FILES] == ["compose-2m-2s.yaml", "compose-controller.yaml", "compose.yaml"]


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_each_service_starts_a_daemon_with_options_that_it_has(path: Path) -> None:
    compose = read_compose(path)
    for service in compose.services.values():
        (daemon,) = service.command
        assert daemon in DAEMONS and daemon in skylark.list_commands(None)  # type: ignore[arg-type]
        own = {name for o in options_of(options_class(daemon)) for name in variables_of(o)}
        assert set(service.environment) <= own | OTHER_VARIABLES.get(daemon, set())
        warnings: list[str] = []
        options = options_in(service, warnings)
        assert warnings == []
        assert sorted(service.ports.values()) == ([] if service.in_network_of_machine else [
            getattr(options, port) for port in PORTS[daemon]
        ])  # fmt: skip
        assert options.health_port > 0
    assert sorted(compose.volumes) == sorted(each.volume for each in compose.services.values() if each.volume)


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_services_name_each_other(path: Path) -> None:
    compose = read_compose(path)
    for service in compose.services.values():
        assert set(service.depends_on) <= set(compose.services)
        for name, value in service.environment.items():
            for host, port in re.findall(r"(?:n\d-)?([a-z][\w-]*?):(\d+)", value):
                other = options_in(compose.services[host])
                ports = {getattr(other, "listen_port", 0)}
                if name.startswith("SKYLARK_CONTROLLER"):
                    ports = {int(peer.rpartition(":")[2]) for peer in other.controller_peers.values()}
                assert int(port) in ports, (service.name, name, value)


@pytest.mark.parametrize("publish", ["127.0.0.1", "10.0.0.5"])
def test_no_two_services_have_one_port_and_all_are_at_the_published_address(publish: str) -> None:
    for path in FILES:
        compose = read_compose(path, {"PUBLISH": publish})
        ports = [port for each in compose.services.values() for port in each.ports]
        assert len(ports) == len(set(ports)) and {host for host, _ in ports} == {publish}


def test_brokers_tell_everybody_an_address_that_leads_to_them() -> None:
    for compose, service in all_services():
        if service.command != ["broker"]:
            continue
        options = options_in(service)
        told = dict(parse_advertised(options.advertised_addresses, options.listen_port))
        ((host, outer),) = service.ports
        assert {str(network): addr for network, addr in told.items()} == {
            compose.subnet: f"{service.name}:{options.listen_port}",
            f"{compose.gateway}/32": f"{host}:{outer}",
            "0.0.0.0/0": f"{host}:{outer}",
        }


def test_the_sets_are_as_in_the_conf_files() -> None:
    for name, conf, key in (
        ("compose-2m-2s.yaml", "2m-2s-sync", "broker_role"),
        ("compose-controller.yaml", "controller", "enable_controller_mode"),
    ):
        brokers = [
            options_in(each) for each in read_compose(FOLDER / name).services.values() if each.command == ["broker"]
        ]
        files = [
            load_conf(options_class("broker"), path, environ={})
            for path in sorted((ROOT / "conf" / conf).glob("broker*"))
        ]
        fields = ("broker_name", "broker_id", key, "all_ack_in_sync_state_set", "min_in_sync_replicas")
        assert sorted([getattr(each, field) for field in fields] for each in brokers) == sorted(
            [getattr(each, field) for field in fields] for each in files
        )


def test_the_image_names_no_registry() -> None:
    lines = [line for line in CONTAINERFILE.splitlines() if line and not line.startswith("#")]
    assert {line.split()[0] for line in lines} <= INSTRUCTIONS
    (base,) = re.findall(r"^ARG BASE=(\S+)$", CONTAINERFILE, re.MULTILINE)
    assert "/" not in base


def test_the_image_says_what_is_in_it() -> None:
    known = {name for daemon in DAEMONS for o in options_of(options_class(daemon)) for name in variables_of(o)}
    assert set(image_environment()) <= known
    (exposed,) = re.findall(r"^EXPOSE (.*)$", CONTAINERFILE, re.MULTILINE)
    ports = {int(image_environment()["SKYLARK_HEALTH_PORT"])}
    for daemon, fields in PORTS.items():
        defaults = {o.name: o.default for o in options_of(options_class(daemon))}
        ports |= {int(defaults[field]) for field in fields}
    broker = {o.name: o.default for o in options_of(options_class("broker"))}
    assert {int(port) for port in exposed.split()} == ports | {
        int(broker["listen_port"]) - 2, int(broker["listen_port"]) + 1,
    }  # fmt: skip
    (entry,) = re.findall(r'^ENTRYPOINT \["(\w+)"\]$', CONTAINERFILE, re.MULTILINE)
    (health,) = re.findall(r'CMD \["(\w+)", "(\w+)"\]', CONTAINERFILE)
    assert entry == health[0] == "skylark" and health[1] in skylark.list_commands(None)  # type: ignore[arg-type]


def test_what_is_left_out_of_the_build_is_not_in_the_wheel() -> None:
    lines = (FOLDER / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}
    packages = {path.name for path in (ROOT / "skylark").iterdir() if path.is_symlink()}
    metadata = {"setup.cfg", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md", "CHANGELOG.md", "skylark"}
    modules = {path.name for path in ROOT.glob("*.py")}
    assert let_in == packages | metadata | modules
    assert [line for line in lines if line and line[0] not in "!#"] == ["*", "**/__pycache__"]
