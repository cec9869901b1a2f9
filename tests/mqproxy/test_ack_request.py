"""Acknowledgements are read, and answered, as objects of protobuf say."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqproxy import ack_request
from skylark.mqproxy.ack_request import AckRequest
from skylark.mqproxy.answers import acknowledged
from skylark.mqproxy.statuses import OK, Refused
from skylark.mqproxy.wire import messaging_pb2 as wire

# Few sizes, so that entries are often alike; some are not ASCII, or longer than a size of one byte says.
TEXTS = st.sampled_from(["", "a", "b", "id-1", "id-2", "\xe9", "x" * 127, "y" * 128, "z" * 300])
ENTRIES = st.lists(st.tuples(TEXTS, TEXTS), max_size=5) | st.lists(
    st.tuples(st.text("ab", min_size=4, max_size=4), st.text("cd", min_size=9, max_size=9)), max_size=5
)
NAMES = st.sampled_from(["", "orders", "o" * 200])


def request(topic: str, group: str, entries: list[tuple[str, str]]) -> wire.AckMessageRequest:
    return wire.AckMessageRequest(
        topic=wire.Resource(name=topic),
        group=wire.Resource(name=group),
        entries=[wire.AckMessageEntry(message_id=id_, receipt_handle=handle) for id_, handle in entries],
    )


@given(NAMES, NAMES, ENTRIES)
def test_a_request_is_read_and_answered_as_an_object_of_protobuf(
    topic: str, group: str, entries: list[tuple[str, str]]
) -> None:
    made = request(topic, group, entries)
    found = AckRequest(made.SerializeToString())
    assert (found.topic, found.group, found.whole()) == (made.topic, made.group, made)
    assert found.handles == [handle for _, handle in entries]
    results = [wire.AckMessageResultEntry(message_id=id_, receipt_handle=h, status=OK) for id_, h in entries]
    answer = wire.AckMessageResponse.FromString(acknowledged(found.fields))
    assert answer == wire.AckMessageResponse(status=OK, entries=results)


@given(st.binary(max_size=3), st.integers(0, 80), st.integers(0, 3), ENTRIES)
def test_bytes_that_were_changed_are_read_as_protobuf_reads_them(
    new: bytes, at: int, cut: int, entries: list[tuple[str, str]]
) -> None:
    data = request("orders", "g", entries).SerializeToString()
    data = data[:at] + new + data[at + cut :]
    try:
        whole = wire.AckMessageRequest.FromString(data)
    except DecodeError:
        with pytest.raises(Refused):
            AckRequest(data)
    else:
        found = AckRequest(data)
        assert (found.topic, found.group) == (whole.topic, whole.group)
        assert found.handles == [entry.receipt_handle for entry in whole.entries]
        results = wire.AckMessageResponse.FromString(acknowledged(found.fields)).entries
        assert [each.message_id for each in results] == [entry.message_id for entry in whole.entries]


def test_entries_that_are_alike_are_cut_out_of_the_request() -> None:
    entries = [(f"id-{number}", f"handle-{number}") for number in range(3)]
    data = request("orders", "g", entries).SerializeToString()
    assert ack_request._alike(data) is not None
    # The text of another kind of entry has a field more.
    lite = wire.AckMessageEntry(message_id="id-1", receipt_handle="handle-1", lite_topic="t")
    other = wire.AckMessageRequest(entries=[lite, lite]).SerializeToString()
    assert ack_request._alike(other) is None
    assert len(wire.AckMessageResponse.FromString(acknowledged(AckRequest(other).fields)).entries) == 2
