"""Messages and answers that are encoded by hand: protobuf reads them as the objects that say the same."""

import hashlib
import operator
import re
from types import SimpleNamespace
from typing import cast

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.properties import PRIORITY, RESERVED, encode_properties
from skylark.mqcommon.message.record import encode_record, topic_field
from skylark.mqproxy.answers import receive_end, receive_status, sent_one
from skylark.mqproxy.deliveries import Delivery, Receipt
from skylark.mqproxy.sending import BORN_HOST, DELIVER_AT, SHOWN, TRACE_CONTEXT, answer_of, entry_of
from skylark.mqproxy.statuses import OK
from skylark.mqproxy.stored import MessageEncoder
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.mqproxy.wire.fields import FIRST_MS, LAST_MS
from skylark.remoting.protocol.pop_info import PopHandle
from skylark.sdk.consumer.popped import Lease, ReceivedMessage
from skylark.sdk.producer.result import SendResult, SendStatus
from tests.mqproxy.test_times import TOPIC, stored

TEXTS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",)), max_size=150)
NAMES = st.sampled_from(sorted(RESERVED)) | TEXTS.filter(bool)
# Times before and after the end of the year 9999, and of more digits than a number of 64 bits has.
DELIVERY_TIMES = st.integers(0, 2 * LAST_MS) | st.integers(0, 10**20)
DELAYED = st.just(dict[str, str]()) | DELIVERY_TIMES.map(lambda ms: {DELIVER_AT: str(ms)})
PRIORITIES = st.just(dict[str, str]()) | st.integers(-1, 2**32).map(lambda number: {PRIORITY: str(number)})
OF_TYPES = st.builds(operator.or_, DELAYED, PRIORITIES)
PROPERTIES = st.builds(operator.or_, st.dictionaries(NAMES, TEXTS.filter(bool), max_size=6), OF_TYPES)
# Any client writes what is stored: names twice, a key in the middle, what is no pair, and bytes that are no UTF-8.
PAIRS = st.lists(st.tuples(NAMES | st.just("UNIQ_KEY"), TEXTS), max_size=5)
ODD_PROPERTIES = st.builds(
    lambda pairs, junk: b"".join([f"{name}\x01{value}\x02".encode() for name, value in pairs]) + junk,
    PAIRS,
    st.binary(max_size=20),
)
RAW_PROPERTIES = PROPERTIES.map(lambda properties: encode_properties(properties).encode()) | ODD_PROPERTIES
INTS, LONGS = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TIMES = st.integers(FIRST_MS, LAST_MS)
PORTS = st.integers(0, 65_535)
LEASE = Lease("orders", "billing", "broker-a", 3, 7, 1_700_000_000_000, 60_000, 0, "0")


def time_of(ms: int) -> Timestamp:
    time = Timestamp()
    time.FromMilliseconds(ms)
    return time


@st.composite
def messages(draw: st.DrawFn) -> ReceivedMessage:
    """A stored message with any fields and properties, as a pop brings it."""
    magic, topic = topic_field("orders")
    data = encode_record(
        magic,
        topic,
        draw(INTS),
        draw(LONGS),
        draw(LONGS),
        draw(st.binary(max_size=300)),
        draw(RAW_PROPERTIES),
        0,
        0,
        draw(TIMES),
        encode_host("10.0.0.1", draw(PORTS)),
        draw(TIMES),
        encode_host("10.0.0.2", draw(PORTS)),
        draw(INTS),
        0,
    )
    return ReceivedMessage(data, 0, "broker-a", LEASE, "")


def as_object(message: MessageExt, topic: wire.Resource) -> wire.Message:
    """A pulled message as protobuf's own objects say it."""
    properties = message.properties
    users = {name: value for name, value in properties.items() if name not in RESERVED or name in SHOWN}
    system = wire.SystemProperties(
        keys=properties.get("KEYS", "").split(),
        message_id=message.msg_id,
        body_digest=wire.Digest(type=wire.MD5, checksum=hashlib.md5(message.body).hexdigest().upper()),
        body_encoding=wire.IDENTITY,
        born_timestamp=time_of(message.born_timestamp),
        born_host=properties.get(BORN_HOST) or message.born_host,
        store_timestamp=time_of(message.store_timestamp),
        store_host=message.store_host,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        delivery_attempt=min(message.reconsume_times + 1, 2**31 - 1),
    )
    for name, field in (("TAGS", "tag"), ("__SHARDINGKEY", "message_group"), (TRACE_CONTEXT, "trace_context")):
        if name in properties:
            setattr(system, field, properties[name])
    deliver_at = properties.get(DELIVER_AT, "")
    if re.fullmatch("[0-9]{1,19}", deliver_at) and int(deliver_at) <= LAST_MS:
        system.delivery_timestamp.CopyFrom(time_of(int(deliver_at)))
    priority = properties.get(PRIORITY, "")
    if re.fullmatch("[0-9]{1,19}", priority) and int(priority) < 2**31:
        system.priority = int(priority)
    if properties.get("TRAN_MSG") == "true":
        system.message_type = wire.TRANSACTION
    elif {"DELAY", DELIVER_AT, "TIMER_DELAY_SEC", "TIMER_DELAY_MS"} & properties.keys():
        system.message_type = wire.DELAY
    elif "__SHARDINGKEY" in properties:
        system.message_type = wire.FIFO
    else:
        system.message_type = wire.PRIORITY if PRIORITY in properties else wire.NORMAL
    return wire.Message(topic=topic, user_properties=users, system_properties=system, body=message.body)


@given(messages(), TEXTS, TEXTS)
def test_a_pulled_message_is_read_as_the_object_that_says_the_same(
    message: ReceivedMessage, namespace: str, name: str
) -> None:
    topic = wire.Resource(resource_namespace=namespace, name=name)
    encoded = MessageEncoder(topic).pulled(message)
    assert wire.PullMessageResponse.FromString(encoded) == wire.PullMessageResponse(message=as_object(message, topic))


@pytest.mark.parametrize(
    ("deliver_at", "ms"),
    [
        ("5", 5),
        ("00000000005", 5),
        (str(LAST_MS), LAST_MS),
        (str(LAST_MS + 1), None),
        (f"{5:020}", None),
        ("-5", None),
        ("\N{ARABIC-INDIC DIGIT FIVE}", None),
    ],
)
def test_a_delayed_message_says_when_it_is_delivered_if_protobuf_has_that_time(deliver_at: str, ms: int | None) -> None:
    message = stored(**{DELIVER_AT: deliver_at})
    found = wire.PullMessageResponse.FromString(MessageEncoder(TOPIC).pulled(message)).message
    assert found == as_object(message, TOPIC)
    system = found.system_properties
    assert (system.delivery_timestamp.ToMilliseconds() if system.HasField("delivery_timestamp") else None) == ms


@given(messages(), INTS, st.integers(0, 2**40), st.integers(0, 2**63 - 1))
def test_a_popped_message_has_its_receipt_and_its_time_besides(
    message: ReceivedMessage, attempt: int, hidden_ms: int, offset: int
) -> None:
    topic = wire.Resource(name="orders")
    receipt = Receipt.of(PopHandle(0, 1_700_000_000_000, hidden_ms, 0, "0", "broker-ä", 3, offset), offset)
    encoded = MessageEncoder(topic).popped(Delivery(message, receipt, attempt, hidden_ms))
    made = as_object(message, topic)
    system = made.system_properties
    system.receipt_handle = f"0 1700000000000 {hidden_ms} 0 0 broker-ä 3 {offset} {offset}"
    system.delivery_attempt = attempt
    system.invisible_duration.seconds, rest_ms = divmod(hidden_ms, 1_000)
    system.invisible_duration.nanos = rest_ms * 1_000_000
    assert wire.ReceiveMessageResponse.FromString(encoded) == wire.ReceiveMessageResponse(message=made)


@given(TEXTS, st.integers(0, 2**63 - 1), TEXTS)
def test_the_answer_to_a_send_is_the_object_of_its_result(msg_id: str, offset: int, recall_handle: str) -> None:
    result = SimpleNamespace(status=SendStatus.SEND_OK, msg_id=msg_id, queue_offset=offset, recall_handle=recall_handle)
    made = answer_of([entry_of(cast(SendResult, result))])
    assert wire.SendMessageResponse.FromString(sent_one(msg_id, offset, recall_handle)) == made


@given(TIMES)
def test_the_ends_of_the_answer_to_a_receive_are_its_status_and_its_time(now_ms: int) -> None:
    odd = wire.Status(code=wire.MESSAGE_NOT_FOUND, message="no new message")
    for status in (OK, odd):
        made = wire.ReceiveMessageResponse(status=status)
        assert wire.ReceiveMessageResponse.FromString(receive_status(status)) == made
    made = wire.ReceiveMessageResponse(delivery_timestamp=time_of(now_ms))
    assert wire.ReceiveMessageResponse.FromString(receive_end(now_ms)) == made
