"""How messages of any sizes, side by side, become requests that brokers take."""

from collections import deque
from itertools import pairwise

import pyarrow as pa
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from skylark import Producer
from skylark.mqcommon.message.batch import encode_batch
from skylark.mqcommon.message.message import Message, OwnKeyMessage
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE
from skylark.sdk.producer.batches import BATCH_BYTES, cut
from skylark.sdk.producer.pending import MAX_BATCH_BYTES, PendingSend, new_ticket, rows_of, take_batch
from skylark.sdk.producer.wire import Row
from tests.sdk.producer.test_producer import bodies, two_brokers

MIB = 1024 * 1024
SMALL = b"s" * 100
MIXES = {
    "some large ones last": [SMALL] * 200 + [b"x" * 1_500_000] * 3,
    "two of half the limit": [SMALL] * 900 + [b"x" * 2_200_000] * 2,
    "one of the limit in the middle": [SMALL] * 20 + [b"x" * (4 * MIB - 100)] + [SMALL] * 20,
    "large ones only": [b"x" * 3_500_000] * 5,
}


def keys_of(count: int) -> list[bytes]:
    return [b"UNIQ_KEY\x01%032d\x02" % number for number in range(count)]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=60), st.binary(max_size=40)), max_size=30),
    st.integers(0, 200),
)
def test_parts_are_as_large_as_may_be_and_not_larger(rows: list[Row], most_bytes: int) -> None:
    parts = list(cut(rows, most_bytes))
    assert [row for part in parts for row in part] == rows
    for part, following in pairwise([*parts, []]):
        assert len(part) == 1 or len(encode_batch(part)) <= most_bytes
        assert not following or len(encode_batch([*part, following[0]])) > most_bytes


def a_send(body_bytes: int, properties_bytes: int, key_bytes: int) -> PendingSend:
    properties = {"p": "v" * properties_bytes}
    message = Message("t", b"x" * body_bytes, properties=properties)
    send = new_ticket(PendingSend, message, message.body, 1, None)
    if key_bytes:
        send.set_key(OwnKeyMessage("t", unique_key="k" * key_bytes).encoded_key)
    return send


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 400), st.sampled_from([0, 10, 255])), min_size=1),
    st.integers(0, 2_000),
)
def test_a_request_of_waiting_sends_has_its_first_and_what_fits(
    sizes: list[tuple[int, int, int]], most_bytes: int
) -> None:
    """Properties and keys count: they may be larger than the bodies. So does the first, which is sent in any case."""
    pending = deque(a_send(*size) for size in sizes)
    while pending:
        sends = take_batch(pending, 100, most_bytes=most_bytes)
        request = encode_batch(rows_of(sends, keys_of))
        assert len(sends) == 1 or len(request) <= most_bytes
        if pending:
            assert len(request) + len(encode_batch(rows_of([pending[0]], keys_of))) > most_bytes


@pytest.mark.parametrize("kind", ["list", "generator", "send_nowait", "send", "send_arrow"])
@pytest.mark.parametrize("mix", MIXES)
async def test_messages_of_any_sizes_side_by_side_are_stored(kind: str, mix: str) -> None:
    sent = MIXES[mix]
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        match kind:
            case "list":
                await producer.send_many("t", sent)
            case "generator":
                await producer.send_many("t", (body for body in sent))
            case "send_nowait":
                for body in sent:
                    producer.send_nowait(Message("t", body))
                await producer.flush()
            case "send":
                async with trio.open_nursery() as nursery:
                    for body in sent:
                        nursery.start_soon(producer.send, Message("t", body))
            case _:
                await producer.send_arrow("t", pa.table({"body": sent}))
        assert sorted(bodies(a, b)) == sorted(sent)
        batches = [request.body for broker in (a, b) for request in broker.asked(SEND_BATCH_MESSAGE.code)]
        assert max(map(len, batches), default=0) <= max(BATCH_BYTES, MAX_BATCH_BYTES)


@pytest.mark.parametrize("kind", ["send_many", "send_nowait", "send_arrow"])
async def test_batches_are_not_larger_than_a_message_may_be(kind: str) -> None:
    """For brokers with a lower maxMessageSize: they refuse a batch of that size, too."""
    sent = [b"%0100d" % number for number in range(2_000)]
    async with two_brokers() as (names, a, b), Producer(names, max_message_bytes=16_384) as producer:
        a.max_message_bytes = b.max_message_bytes = 16_384
        match kind:
            case "send_many":
                await producer.send_many("t", sent)
            case "send_nowait":
                for body in sent:
                    producer.send_nowait(Message("t", body))
                await producer.flush()
            case _:
                await producer.send_arrow("t", pa.table({"body": sent}))
        assert sorted(bodies(a, b)) == sorted(sent)
        assert a.requests_of + b.requests_of < 100
