"""The messages in a broker's answer to a pop, and their leases."""

import pytest

from skylark.mqcommon.message.properties import POP_HANDLE
from skylark.remoting.protocol.pop_info import NORMAL, RETRY_V1, PopHandle
from skylark.remoting.protocol.requests.pops import PopMessageResponseHeader
from skylark.sdk.consumer.popped import bits_by_lease, received
from tests.sdk.fakes import record

FIRST = 1_000_000
# Two queues of the topic, and one of the retry topic.
HEADER = PopMessageResponseHeader(1_000, 60_000, 0, 0, f"0 0 {FIRST};0 1 7;1 0 2")
LATER, FAR_BEFORE = (str(PopHandle(start, 1_000, 60_000, 0, NORMAL, "broker-a", 0, FIRST)) for start in (FIRST + 1, 0))


@pytest.mark.parametrize("handle", ["", "odd", LATER, FAR_BEFORE, f"{FIRST} {2**63} 60000 0 0 broker-a 0 {FIRST}"])
def test_a_senders_own_handle_property_costs_no_message_of_the_pop(handle: str) -> None:
    odd = record("t", 0, FIRST, b"odd", POP_CK=handle)
    data = odd + record("t", 1, 7, b"good")
    messages = received(data, HEADER, "t", "g", "broker-a", "")
    leases = [(lease.queue_id, lease.start_offset, bits) for lease, bits in bits_by_lease(messages).items()]
    assert leases == [(0, FIRST, 1), (1, 7, 1)]


def test_a_message_that_comes_again_has_the_lease_of_its_handle() -> None:
    again = PopHandle(2, 1_000, 60_000, 0, RETRY_V1, "broker-a", 0, 3)
    data = record("t", 0, FIRST, b"new") + record("t", 0, 3, b"again", **{POP_HANDLE: str(again)})
    first, second = received(data, HEADER, "t", "g", "broker-a", "")
    assert (first.lease.retry, first.lease.start_offset) == (NORMAL, FIRST)
    assert second.lease.handle(3) == again
