"""Every shipped conf file loads, and says nothing that has no effect."""

from pathlib import Path

import pytest

from broker.options import BrokerOptions
from mqcommon.options import load_conf
from namesrv.controller.options import ControllerDaemonOptions
from namesrv.options import NamesrvOptions
from tests.tidy.tree import ROOT

# RocketMQ calls a broker's file in a set .properties
CONF = sorted(
    path
    for path in (ROOT / "conf").rglob("*")
    if path.suffix in (".conf", ".properties") and path.name != "tls.properties"
)


@pytest.mark.parametrize("path", CONF, ids=[path.relative_to(ROOT).as_posix() for path in CONF])
def test_conf_file_loads(path: Path) -> None:
    warnings: list[str] = []
    kinds = {"namesrv": NamesrvOptions, "controller": ControllerDaemonOptions}
    cls = next((cls for name, cls in kinds.items() if path.name.startswith(name)), BrokerOptions)
    load_conf(cls, path, environ={}, warnings=warnings)
    assert warnings == []


def test_the_expected_conf_files_are_there() -> None:
    names = {path.relative_to(ROOT / "conf").as_posix() for path in CONF}
    assert {"namesrv.conf", "broker.conf"} <= names
    assert {"2m-noslave/broker-a.properties", "2m-noslave/broker-b.properties"} <= names


@pytest.mark.parametrize(("name", "role"), [("2m-2s-sync", "SYNC_MASTER"), ("2m-2s-async", "ASYNC_MASTER")])
def test_two_masters_and_two_slaves_can_run_on_one_machine(name: str, role: str) -> None:
    brokers = [load_conf(BrokerOptions, path, environ={}, warnings=[]) for path in CONF if path.parent.name == name]
    assert [(one.broker_name, one.broker_id, one.broker_role) for one in brokers] == [
        ("broker-a", 1, "SLAVE"),
        ("broker-a", 0, role),
        ("broker-b", 1, "SLAVE"),
        ("broker-b", 0, role),
    ]
    ports = [
        port for one in brokers for port in (one.listen_port, one.fast_port, one.ha_listen_port or one.listen_port + 1)
    ]
    assert all(ports)
    assert len(set(ports)) == len(ports)
    assert len({one.store_path_root_dir for one in brokers}) == len(brokers)
