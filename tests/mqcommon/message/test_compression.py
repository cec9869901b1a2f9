"""Compressed bodies: all three kinds, damaged ones, and such as claim to hold too much."""

import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import InvalidArgument, ProtocolError
from skylark.mqcommon.message import compression
from skylark.mqcommon.message.compression import COMPRESSIONS, check_compression, compressed, decompressed, inflated

NAMES = ["zlib", "lz4", "zstd"]
PACKAGES = {"zlib": "zlib", "lz4": "lz4.frame", "zstd": "zstandard"}


@pytest.fixture(params=NAMES)
def sys_flag(request: pytest.FixtureRequest) -> int:
    pytest.importorskip(PACKAGES[request.param])
    return COMPRESSIONS[request.param]


@given(body=st.binary(max_size=5_000), times=st.integers(1, 50), name=st.sampled_from(NAMES))
def test_what_was_compressed_comes_out_again(body: bytes, times: int, name: str) -> None:
    pytest.importorskip(PACKAGES[name])
    flag = COMPRESSIONS[name]
    assert decompressed(compressed(body * times, flag), flag) == body * times


@given(data=st.binary(max_size=200), name=st.sampled_from(NAMES))
def test_junk_is_refused_and_nothing_else_happens(data: bytes, name: str) -> None:
    pytest.importorskip(PACKAGES[name])
    try:
        decompressed(data, COMPRESSIONS[name])
    except ProtocolError:
        return


def test_rocketmqs_bits() -> None:
    assert COMPRESSIONS == {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}
    assert decompressed(zlib.compress(b"of a C++ client"), 1) == b"of a C++ client"
    with pytest.raises(ProtocolError, match="not known"):
        decompressed(b"", 0x401)


def test_a_body_that_is_cut_is_refused(sys_flag: int) -> None:
    whole = compressed(bytes(range(256)) * 100, sys_flag)
    for size in (0, 5, len(whole) // 2, len(whole) - 1):
        with pytest.raises(ProtocolError, match=r"cut short|damaged"):
            decompressed(whole[:size], sys_flag)


def test_what_comes_out_is_bounded(sys_flag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = compressed(bytes(1_000_000), sys_flag)
    assert len(bomb) < 5_000
    monkeypatch.setattr(compression, "MAX_CONTENT_BYTES", 1_000_000)
    assert len(decompressed(bomb, sys_flag)) == 1_000_000
    monkeypatch.setattr(compression, "MAX_CONTENT_BYTES", 999_999)
    with pytest.raises(ProtocolError, match="holds more than 999999 bytes"):
        decompressed(bomb, sys_flag)


def test_a_batch_is_bounded_by_its_own_limit() -> None:
    assert inflated(zlib.compress(bytes(100)), 100) == bytes(100)
    with pytest.raises(ProtocolError, match="holds more than 99 bytes"):
        inflated(zlib.compress(bytes(100)), 99)


@pytest.mark.parametrize(("name", "module"), [("lz4", "lz4.frame"), ("zstd", "zstandard")])
def test_a_package_that_is_missing_is_named(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    text = rf"needs Skylark's extra compression \(.*{module}"
    with pytest.raises(InvalidArgument, match=f"how='{name}' {text}"):
        check_compression("how", name)
    with pytest.raises(ProtocolError, match=text):
        decompressed(b"x", COMPRESSIONS[name])


def test_other_names_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="how must be one of 'zlib', 'lz4', 'zstd', not 'gzip'"):
        check_compression("how", "gzip")
    check_compression("how", "zlib")
