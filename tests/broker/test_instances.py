"""Several brokers of one conf file: names, ports and directories."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.identity import resolved
from skylark.broker.instances import check_directory, instances_of
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.daemons.instances import MOST
from skylark.mqcommon.errors import ConfigError


def options(**changes: Any) -> BrokerOptions:
    return resolved(BrokerOptions(**{"broker_name": "big", "broker_ip1": "127.0.0.1", **changes}))


@given(
    count=st.integers(2, MOST),
    listen=st.integers(3, 64_000),
    ha=st.sampled_from([0, 30_000]),
    fast=st.sampled_from([-1, 0, 40_000]),
)
def test_no_two_instances_share_a_port_a_name_or_a_directory(count: int, listen: int, ha: int, fast: int) -> None:
    shared = options(listen_port=listen, ha_listen_port=ha, fast_listen_port=fast)
    ports: list[int] = []
    found = instances_of(shared, count)
    for each in found:
        own = {name: int(each.given.get(name, getattr(shared, name))) for name in ("listen_port", "ha_listen_port")}
        second = int(each.given.get("fast_listen_port", fast))
        ports += [own["listen_port"], own["ha_listen_port"] or own["listen_port"] + 1]
        ports += [second if second > 0 else own["listen_port"] - 2] if second else []
    distinct = {listen, listen + 1, ha, fast, listen - 2}
    if len({port % 10 for port in distinct if port > 0}) == len([port for port in distinct if port > 0]):
        assert len(set(ports)) == len(ports)
    assert [each.name for each in found] == [f"big-{number}" for number in range(count)]
    assert len({each.directory for each in found}) == count


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ha_master_address": "127.0.0.1:1", "broker_role": "SLAVE", "broker_id": 1}, "haMasterAddress"),
        ({"enable_controller_mode": True, "controller_addr": "127.0.0.1:1", "broker_id": -1}, "enableControllerMode"),
        ({"listen_port": 65_000}, "listenPort: 64 instances need ports up to 65631"),
    ],
)
def test_options_that_do_not_allow_for_several(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        instances_of(options(**changes), MOST)


@pytest.mark.parametrize(
    ("made", "count", "why"),
    [
        (["commitlog"], 1, ""),
        (["commitlog"], 2, "mkdir .*new && mv .*/instance-0"),
        (["instance-0/config", "instance-1/config"], 2, ""),
        (["instance-0/config", "instance-1/config"], 4, ""),
        (["instance-0/config", "instance-1/config", "instance-2/x"], 2, "would leave out .*instance-2\\."),
        (["instance-0/config", "instance-1"], 1, "would leave out .*instance-0\\."),
        (["instance-0/config", "instance-1"], 2, ""),
        ([], 3, ""),
    ],
)
def test_no_store_is_hidden_or_left_out(tmp_path: Path, made: list[str], count: int, why: str) -> None:
    for path in made:
        (tmp_path / path).mkdir(parents=True)
    shared = options(store_path_root_dir=str(tmp_path))
    if not why:
        check_directory(shared, count)
        return
    with pytest.raises(ConfigError, match=why):
        check_directory(shared, count)


def test_log_files_are_the_instances_own() -> None:
    for given_file, own in (("/l/broker.log", "/l/broker-1.log"), ("/l.d/broker", "/l.d/broker-1")):
        assert instances_of(options(log_file=given_file), 2)[1].given["log_file"] == own


def test_an_instance_opens_its_own_commit_log_though_the_conf_names_the_shared_place(tmp_path: Path) -> None:
    shared = options(store_path_root_dir=str(tmp_path), store_path_commit_log=f"{tmp_path}/commitlog")
    for each in instances_of(shared, 2):
        changes: dict[str, Any] = {name: each.given[name] for name in ("store_path_root_dir", "store_path_commit_log")}
        assert resolved(replace(shared, **changes)).store_path_root_dir == str(each.directory)
