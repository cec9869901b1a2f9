"""``host:port`` is taken apart, or refused with the text that was given."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skylark.mqcommon.addresses import (
    client_ip,
    format_address,
    is_address,
    is_any_address,
    limited_network,
    parse_advertised,
    split_address,
)

hosts = st.text("abcdefghijklmnopqrstuvwxyz0123456789.-", min_size=1)


@given(hosts, st.integers(1, 65535))
def test_host_and_port_come_apart(host: str, port: int) -> None:
    assert split_address(f"{host}:{port}") == (host, port)


@given(st.one_of(hosts, st.ip_addresses().map(str)), st.integers(1, 65535))
def test_a_formatted_address_comes_apart_again(host: str, port: int) -> None:
    assert split_address(format_address(host, port)) == (host, port)


def test_an_ipv6_host_gets_brackets() -> None:
    assert format_address("::1", 10911) == "[::1]:10911"
    assert format_address("127.0.0.1", 10911) == "127.0.0.1:10911"


def test_an_ipv6_host_loses_its_brackets() -> None:
    assert split_address("[::1]:10911") == ("::1", 10911)


@given(st.text())
@example("h:" + "9" * 5000)
@example("h:²")
def test_any_text_is_an_address_or_a_value_error_that_names_it(text: str) -> None:
    try:
        host, port = split_address(text)
    except ValueError as error:
        assert repr(text) in str(error) and not is_address(text)
    else:
        assert 0 < port < 65536 and text.rpartition(":")[0].strip("[]") == host
        assert is_address(text)


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:0", "host:65536", "host:-1", "host:1x", "host:²"])
def test_a_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address of the form host:port"):
        split_address(text)


def test_some_addresses_mean_all_interfaces() -> None:
    assert all(map(is_any_address, ("", "0.0.0.0", "::")))
    assert not any(map(is_any_address, ("127.0.0.1", "::1", "10.0.0.1", "localhost")))


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64%eth0"),
        ("memory", "memory"),
    ],
)
def test_limits_of_one_address_count_networks_of_ipv6(host: str, network: str) -> None:
    assert limited_network(host) == network


def test_advertised_addresses_are_sorted_by_their_networks() -> None:
    text = "10.0.0.0/8=10.0.0.5 ; 10.1.0.0/16 = h.example:7, fd00::/8=[fd00::5]:8,fd00:1::/32=fd00:1::5,192.168.1.1=h"
    found = [(str(network), addr) for network, addr in parse_advertised(text, 10911)]
    assert found == [
        ("fd00:1::/32", "[fd00:1::5]:10911"), ("192.168.1.1/32", "h:10911"), ("10.1.0.0/16", "h.example:7"),
        ("10.0.0.0/8", "10.0.0.5:10911"), ("fd00::/8", "[fd00::5]:8"),
    ]  # fmt: skip
    again = ",".join(f"{network}={addr}" for network, addr in found)
    assert parse_advertised(again, 1) == parse_advertised(text, 10911)
    assert parse_advertised(" ", 1) == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10.0.0.5", "is not of the form network=host:port"),
        ("10.0.0.0/8=", "is not of the form network=host:port"),
        ("10.0.0.1/8=h:1", "10.0.0.1/8 has host bits set"),
        ("x=h:1", "'x' does not appear to be"),
        ("10.0.0.0/8=h:0", "'h:0' is not an address"),
        ("10.0.0.0/8=a,10.0.0.0/8=b", "10.0.0.0/8 has two addresses"),
        (",".join(f"10.0.0.{n}=h" for n in range(65)), "at most 64"),
    ],
)
def test_advertised_addresses_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_advertised(text, 10911)


def test_the_ip_of_a_client() -> None:
    assert [str(client_ip(host)) for host in ("10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "unix", "")] == [
        "10.0.0.1", "10.0.0.1", "fe80::1", "None", "None",
    ]  # fmt: skip
