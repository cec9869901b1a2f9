"""Where daemons listen whose bindAddress is not set."""

import pytest

from skylark.mqcommon.exposure import Exposure, exposure, opened

CLOSED = Exposure("127.0.0.1")
BROKER_CONF = [
    "brokerClusterName", "brokerName", "brokerId", "deleteWhen", "fileReservedTime", "brokerRole", "flushDiskType",
]  # fmt: skip


def test_what_is_set_counts() -> None:
    for address in ("127.0.0.1", "10.0.0.5", "0.0.0.0", "::"):
        assert exposure(address, [("namesrvAddr", "10.0.0.1:9876")], BROKER_CONF) == Exposure(address)


@pytest.mark.parametrize(
    "value",
    ["", "127.0.0.1:9876", "localhost:9876;[::1]:9876", "127.0.0.2", "n0-127.0.0.1:40911;n1-localhost:40912", "::1",
     "127.0.0.0/8=127.0.0.1:10911", " 127.0.0.1:9876 ; "],
)  # fmt: skip
def test_options_that_name_this_machine_only_open_nothing(value: str) -> None:
    assert exposure("", [("key", value)]) == CLOSED


@pytest.mark.parametrize(
    ("value", "host"),
    [("10.0.0.1:9876", "10.0.0.1"), ("127.0.0.1:9876;mq.example:9876", "mq.example"), ("[fd00::1]:9876", "fd00::1"),
     ("n0-127.0.0.1:1;n1-10.0.0.2:1", "10.0.0.2"), ("10.0.0.0/8=10.0.0.5", "10.0.0.5"), ("192.168.0.7", "192.168.0.7")],
)  # fmt: skip
def test_an_address_of_another_machine_opens_the_port_and_is_named(value: str, host: str) -> None:
    assert exposure("", [("other", ""), ("key", value)]) == Exposure("0.0.0.0", f"key names {host}")


def test_rocketmqs_own_conf_files_open_the_port_as_rocketmq_does() -> None:
    assert exposure("", [], BROKER_CONF) == Exposure("0.0.0.0", "the conf file is one of RocketMQ's")
    assert exposure("", [], [*BROKER_CONF, "storePathRootDir"]) == CLOSED
    assert exposure("", [], BROKER_CONF[1:]) == CLOSED


def test_the_line_of_the_log_says_what_is_open_why_and_what_to_do() -> None:
    assert opened("10.0.0.5:10911", "", "") == ""
    assert opened("10.0.0.5:10911", "namesrvAddr names 10.0.0.1", "strangers may; set aclEnable=true, or") == (
        "listens on all interfaces, at 10.0.0.5:10911, as bindAddress is not set and namesrvAddr names 10.0.0.1;"
        " access is not controlled: strangers may; set aclEnable=true, or bindAddress to an address of a network that"
        " you trust"
    )
    remedy = "; to change that, set bindAddress to an address of a network that you trust"
    assert opened("h:1", "a names b", "").endswith(remedy)
