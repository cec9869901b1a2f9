"""Which messages an entry of a batch of acknowledgements names."""

import pytest

from skylark.broker.delivery.pop.acks import MAX_BITS, _offsets
from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.protocol.requests.pops import BatchAck


def entry(bits: int) -> BatchAck:
    return BatchAck(start_offset=100, bits=bits)


@pytest.mark.parametrize("places", [[], [0], [0, 1, 2], [4, 5, 6], [3, 64, 1_000], [MAX_BITS - 1]])
def test_a_bit_is_an_offset_after_the_first(places: list[int]) -> None:
    assert [*_offsets(entry(sum(1 << place for place in places)))] == [100 + place for place in places]


def test_more_bits_than_a_check_point_has_offsets_are_refused() -> None:
    with pytest.raises(RequestRefused, match="b has 65537 bits"):
        _offsets(entry(1 << MAX_BITS))
