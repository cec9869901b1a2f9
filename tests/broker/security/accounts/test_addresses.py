"""Addresses in white lists: RocketMQ's forms, and a naive model of them."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.security.accounts.addresses import Addresses, split_list


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("10.1.2.3", ["10.1.2.3", "::ffff:10.1.2.3"], ["10.1.2.4", "::1", "10.1.2.33", "not-an-address"]),
        ("*", ["10.1.2.3", "::1", "whoever"], []),
        ("*.*.*.*", ["10.1.2.3", "fd00::1"], []),
        ("*:*:*:*:*:*:*:*", ["10.1.2.3", "fd00::1"], []),
        ("192.168.*.*", ["192.168.0.1", "192.168.255.255"], ["192.169.0.1", "10.192.168.1"]),
        ("192.168.1-20.*", ["192.168.1.9", "192.168.20.0"], ["192.168.0.9", "192.168.21.9"]),
        ("192.168.*.7", ["192.168.5.7"], ["192.168.5.8"]),
        ("192.168.0.{1,2}", ["192.168.0.1", "192.168.0.2"], ["192.168.0.3", "192.168.0.12"]),
        ("10.0.0.1,10.0.0.2", ["10.0.0.1", "10.0.0.2"], ["10.0.0.3"]),
        ("10.0.0.{1,2}, 10.1.*.*", ["10.0.0.2", "10.1.0.9"], ["10.0.0.9"]),
        ("1050::0005:0600:300c:3261", ["1050::5:600:300c:3261"], ["1050::5:600:300c:3262", "10.5.0.0"]),
        ("FD00::A", ["fd00::a", "fd00:0:0:0:0:0:0:a", "fd00::a%eth0"], ["fd00::b"]),
        ("fd00::*", ["fd00::ffff", "fd00::"], ["fd00::1:0", "fd01::1"]),
        ("fd00:0:0:0:1:*:*:*", ["fd00::1:9:9:9"], ["fd00::2:9:9:9"]),
        ("fd00::1-ff", ["fd00::80"], ["fd00::100", "fd00::"]),
        ("fd00::{1,a}", ["fd00::1", "fd00::a"], ["fd00::2"]),
        ("fd00::1,fd00::2", ["fd00::1", "fd00::2"], ["fd00::3"]),
        ("", [], ["10.0.0.1", ""]),
        (" , ", [], ["10.0.0.1"]),
    ],
)
def test_the_forms(text: str, inside: list[str], outside: list[str]) -> None:
    addresses = Addresses([text])
    for _ in range(2):  # from the cache, too
        assert [host for host in inside if not addresses.naming(host)] == []
        assert [host for host in outside if addresses.naming(host)] == []


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0", "10.0.0.1.2", "10.0.0.256", "10.0.0.20-10", "10.0.0.-5", "10.0.0.{1", "10.0.0.{}", "10.0.0.{1,}",
        "10.0.0.1/8", "10.0.0.x", "10.0.0. 1", "10.0.0.+1", "10.0.0.1_0", "10.0.0.²", "a", "**", ":::", "1::2::3",
        "fd00::12345", "fd00::g", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1:2:3:4::5:6:7:8:*", "10.0.0.1,nothing", "*.*",
    ],
)  # fmt: skip
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is no address: give"):
        Addresses([text])


def test_the_text_that_names_a_host_is_known() -> None:
    addresses = Addresses(["10.0.0.1,10.1.*.*", "10.2.0.{1,2}"])
    assert [addresses.naming(host) for host in ("10.1.9.9", "10.2.0.2", "10.3.0.0")] == ["10.1.*.*", "10.2.0.{1,2}", ""]
    assert addresses.texts == ("10.0.0.1", "10.1.*.*", "10.2.0.{1,2}")


def test_a_comma_in_braces_does_not_separate() -> None:
    assert split_list(" a,b{1,2},,c ") == ["a", "b{1,2}", "c"]


@st.composite
def patterns(draw: st.DrawFn) -> tuple[str, list[set[int]], bool]:
    """A pattern, the numbers that each part may be, and whether it is IPv6."""
    is_v6 = draw(st.booleans())
    most, parts = (0xFFFF, 8) if is_v6 else (0xFF, 4)
    write = "{:x}".format if is_v6 else str
    texts, sets = [], []
    for _ in range(parts):
        numbers = draw(st.lists(st.integers(0, most), min_size=1, max_size=3, unique=True))
        kind = draw(st.sampled_from(["one", "set", "range", "all"]))
        if kind == "one":
            texts.append(write(numbers[0]))
            sets.append({numbers[0]})
        elif kind == "set":
            texts.append("{" + ",".join(map(write, numbers)) + "}")
            sets.append(set(numbers))
        elif kind == "range":
            texts.append(f"{write(min(numbers))}-{write(max(numbers))}")
            sets.append(set(range(min(numbers), max(numbers) + 1)))
        else:
            texts.append("*")
            sets.append(set(range(most + 1)))
    return (":" if is_v6 else ".").join(texts), sets, is_v6


@given(patterns(), st.data())
def test_patterns_against_a_naive_model(made: tuple[str, list[set[int]], bool], data: st.DataObject) -> None:
    text, sets, is_v6 = made
    most = 0xFFFF if is_v6 else 0xFF
    parts = [data.draw(st.sampled_from(sorted(numbers)) | st.integers(0, most)) for numbers in sets]
    raw = b"".join(part.to_bytes(2 if is_v6 else 1, "big") for part in parts)
    host = str(IPv6Address(raw)) if is_v6 else str(IPv4Address(raw))
    if is_v6 and IPv6Address(raw).ipv4_mapped is not None:
        return  # this is an IPv4 address
    all_parts = "*" in text and set(text) <= {"*", ".", ":"}
    expected = all_parts or all(part in numbers for part, numbers in zip(parts, sets, strict=True))
    assert bool(Addresses([text]).naming(host)) is expected


@given(st.text(alphabet="0123456789abcdef.:*-{},/ x", max_size=30), st.ip_addresses())
def test_any_text_is_a_list_of_addresses_or_a_clear_error(text: str, host: IPv4Address | IPv6Address) -> None:
    try:
        addresses = Addresses([text])
    except ValueError as error:
        assert "is no address: give" in str(error)
    else:
        assert addresses.naming(str(host)) in ("", *addresses.texts)
