"""Names and addresses filled in from the machine."""

import ipaddress
import os
import socket

import pytest

from skylark.broker.identity import Identity, identity_of, resolved
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.errors import ConfigError


def test_names_and_addresses_of_the_options_stay() -> None:
    options = resolved(
        BrokerOptions(broker_name="b", broker_ip1="10.1.2.3", broker_ip2="10.9.9.9", store_path_root_dir="/data")
    )
    assert identity_of(options, 10911) == Identity("DefaultCluster", "b", 0, "10.1.2.3:10911", "10.9.9.9:10912")
    assert options.store_path_root_dir == "/data"


def test_names_and_addresses_are_taken_from_the_machine() -> None:
    options = resolved(BrokerOptions())
    assert options.broker_name == socket.gethostname()
    assert ipaddress.ip_address(options.broker_ip1).version == 4
    assert options.broker_ip2 == options.broker_ip1
    assert options.store_path_root_dir == os.path.expanduser("~/store")


def test_a_commit_log_elsewhere_is_refused_with_the_remedy() -> None:
    options = BrokerOptions(store_path_root_dir="/data", store_path_commit_log="/data/commitlog/")
    assert resolved(options).store_path_root_dir == "/data"
    with pytest.raises(ConfigError, match=r"storePathCommitLog: .* or link it: ln -s /log /data/commitlog$"):
        resolved(BrokerOptions(store_path_root_dir="/data", store_path_commit_log="/log"))


def test_a_bind_address_is_where_clients_reach_us() -> None:
    assert resolved(BrokerOptions(broker_name="b", bind_address="127.0.0.1")).broker_ip1 == "127.0.0.1"


def test_the_port_may_be_known_late_and_the_ha_port_be_given() -> None:
    options = resolved(BrokerOptions(broker_name="b", broker_ip1="10.1.2.3", listen_port=0, ha_listen_port=7))
    identity = identity_of(options, 45678)
    assert (identity.addr, identity.ha_addr) == ("10.1.2.3:45678", "10.1.2.3:7")


def test_a_v6_address_is_bracketed() -> None:
    options = resolved(BrokerOptions(broker_name="b", broker_ip1="2001:db8::1"))
    assert identity_of(options, 1).addr == "[2001:db8::1]:1"


def test_advertised_addresses_get_the_port_of_the_broker() -> None:
    options = resolved(BrokerOptions(broker_name="b", listen_port=0, advertised_addresses="10.0.0.0/8=10.0.0.5"))
    assert identity_of(options, 45678).advertised == "10.0.0.0/8=10.0.0.5:45678"
    with pytest.raises(ConfigError, match=r"advertisedAddresses: '10\.0\.0\.5' is not of the form"):
        BrokerOptions(advertised_addresses="10.0.0.5")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (BrokerOptions(broker_name="b", broker_ip1="nowhere"), "brokerIP1: 'nowhere' is not an IP address"),
        (BrokerOptions(broker_name="b", broker_ip1="10.0.0.1", broker_ip2="x"), "brokerIP2: 'x' is not an IP address"),
        (BrokerOptions(broker_name="a b", broker_ip1="10.0.0.1"), "brokerName: 'a b' is not a legal name"),
        (BrokerOptions(broker_name="b", broker_cluster_name="", broker_ip1="10.0.0.1"), "brokerClusterName: ''"),
    ],
)
def test_illegal_names_and_addresses_are_refused(options: BrokerOptions, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(options)
    assert words in str(caught.value)
