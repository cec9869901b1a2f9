"""Every shipped conf file loads, and says nothing that has no effect."""

import re
from pathlib import Path

import pytest

from skylark.broker.options import BrokerOptions
from skylark.mqadmin.securing import confs, plan_of
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.options.conf_file import load_conf
from skylark.mqconsole.options import ConsoleOptions
from skylark.mqproxy.options import ProxyOptions
from skylark.namesrv.controller.options import ControllerDaemonOptions
from skylark.namesrv.options import NamesrvOptions
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
    kinds = {
        "namesrv": NamesrvOptions, "controller": ControllerDaemonOptions, "mqconsole": ConsoleOptions,
        "proxy": ProxyOptions,
    }  # fmt: skip
    cls = next((cls for name, cls in kinds.items() if path.name.startswith(name)), BrokerOptions)
    # The secrets of conf/secure are not in its files.
    environ = {"ROCKETMQ_INNER_CLIENT_CREDENTIALS": '{"accessKey":"inner","secretKey":"..."}'}
    load_conf(cls, path, environ=environ if path.parent.name == "secure" else {}, warnings=warnings)
    assert warnings == []


def test_the_confs_of_a_guarded_cluster_are_what_mqadmin_writes() -> None:
    written = confs(plan_of("/etc/skylark", "127.0.0.1:9876", (), tls=True))
    folder = ROOT / "conf" / "secure"
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == written


def test_the_expected_conf_files_are_there() -> None:
    names = {path.relative_to(ROOT / "conf").as_posix() for path in CONF}
    assert {"namesrv.conf", "broker.conf"} <= names
    assert {"2m-noslave/broker-a.properties", "2m-noslave/broker-b.properties"} <= names


def test_the_guide_names_the_conf_files_that_strangers_can_reach() -> None:
    found = [path.parent.name for path in CONF if "\nbindAddress=127.0.0.1\n" not in path.read_text(encoding="utf-8")]
    # Controllers listen at their addresses in controllerDLegerPeers, which are on loopback in these files.
    assert {name for name in found if not name.startswith("2m-")} == {"controller"}
    assert "(`conf/2m-*`)" in (ROOT / "docs" / "guides" / "secure.md").read_text(encoding="utf-8")


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


def test_three_brokers_of_a_set_with_controllers_can_run_on_one_machine() -> None:
    found = [path for path in CONF if path.parent.name == "controller"]
    brokers = [load_conf(BrokerOptions, path, environ={}, warnings=[]) for path in found if path.name[:6] == "broker"]
    assert len(brokers) == 3
    ports = [port for one in brokers for port in (one.listen_port, one.fast_port, one.listen_port + 1)]
    controllers = [
        load_conf(ControllerDaemonOptions, path, environ={}, warnings=[])
        for path in found
        if path.name[:10] == "controller"
    ]
    (peers,) = {tuple(one.controller_peers.values()) for one in controllers}
    assert len({*ports, *(int(addr.split(":")[1]) for addr in peers)}) == len(ports) + len(peers) == 12
    assert len({one.store_path_root_dir for one in brokers}) == len({one.controller_dir for one in controllers}) == 3
    for one in brokers:
        assert (one.broker_name, one.broker_id, one.enable_controller_mode) == ("broker-a", -1, True)
        assert tuple(one.controller_addrs) == peers
        assert (one.all_ack_in_sync_state_set, one.min_in_sync_replicas) == (True, 2)


def test_the_missing_features_that_docs_name_are_what_a_broker_refuses(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "operate" / "install.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"a key for a feature that is missing\s+\(([^)]*)\)", text)
    lines = [line if "=" in line else f"{line}=true" for line in re.findall(r"`([^`]+)`", listed)]
    path = tmp_path / "broker.conf"
    for line in lines:
        path.write_text(line, encoding="utf-8")
        with pytest.raises(ConfigError, match="this version does not have"):
            load_conf(BrokerOptions, path, environ={}, warnings=[])
    assert {line.partition("=")[0] for line in lines} <= BrokerOptions.limited_keys.keys()


def test_guides_start_daemons_with_copies_of_the_shipped_conf_files() -> None:
    """A daemon writes changes of its options into its conf file."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *CONF]
    assert [page.name for page in pages if re.search(r" -c conf/", page.read_text(encoding="utf-8"))] == []
