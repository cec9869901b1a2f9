"""``host:port`` is taken apart, or refused with the text that was given."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqcommon.addresses import format_address, is_address, is_any_address, limited_network, split_address

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
