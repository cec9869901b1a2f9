import sys
import zlib
from importlib import reload

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon import crc


@given(data=st.binary(max_size=3 * crc.LARGE_BYTES), first=st.integers(0, 0xFFFF_FFFF))
def test_the_sum_is_the_one_of_zlib(data: bytes, first: int) -> None:
    assert crc.large_crc32(data, first) == zlib.crc32(data, first)
    assert crc.large_crc32(memoryview(data)[1:]) == zlib.crc32(data[1:])


def test_isal_is_used() -> None:
    isal_zlib = pytest.importorskip("isal.isal_zlib")
    assert crc.large_crc32 is isal_zlib.crc32


def test_without_isal_zlib_is_used() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "isal", None)
        patch.setitem(sys.modules, "isal.isal_zlib", None)
        assert reload(crc).large_crc32 is zlib.crc32
    reload(crc)
