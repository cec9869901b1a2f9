"""The text of trace messages, as RocketMQ's clients of all versions write it."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.message import Message, own_properties
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.producer.result import SendStatus, StoredBatch
from skylark.sdk.producer.wire import Stored
from skylark.sdk.traces.entries import Consumed, ConsumedMessage, Consuming, Sent
from skylark.sdk.traces.records import TraceRecord, decode_records

PUB = ("Pub", "1700000000000", "DefaultRegion", "g", "orders", "M1", "tea", "k1 k2", "127.0.0.1:10911", "5", "12", "0")


def record(*fields: str) -> str:
    return "\x01".join(fields) + "\x02"


def test_pub_of_all_versions() -> None:
    oldest, later, latest = decode_records(
        record(*PUB, "true") + record(*PUB, "OFFSET", "false") + record(*PUB, "OFFSET", "true", "10.0.0.1")
    )
    assert oldest == TraceRecord(
        kind="Pub", msg_id="M1", timestamp_ms=1_700_000_000_000, region="DefaultRegion", group="g", topic="orders",
        tags="tea", keys="k1 k2", store_host="127.0.0.1:10911", body_length=5, cost_ms=12, message_type="Normal_Msg",
        success=True,
    )  # fmt: skip
    assert (later.offset_msg_id, later.success, later.client_host) == ("OFFSET", False, None)
    assert (latest.offset_msg_id, latest.success, latest.client_host) == ("OFFSET", True, "10.0.0.1")


def test_consumers_records_of_java_and_cpp() -> None:
    text = record("SubBefore", "1700000000005", "DefaultRegion", "g", "R1", "M1", "2", "dKey")
    text += record("SubAfter", "R1", "M1", "7", "true", "dKey")
    text += record("SubAfter", "R1", "M1", "7", "false", "null", "1")
    text += record("SubAfter", "R1", "M1", "7", "false", "null", "2", "1700000000012", "g")
    before, cpp, old, new = decode_records(text)
    assert (before.kind, before.request_id, before.msg_id, before.retry_times) == ("SubBefore", "R1", "M1", 2)
    assert (cpp.success, cpp.context_code, cpp.group) == (True, None, None)
    assert (old.success, old.context_code, old.timestamp_ms, old.keys) == (False, "TIME_OUT", None, None)
    assert (new.context_code, new.timestamp_ms, new.group) == ("EXCEPTION", 1_700_000_000_012, "g")


def test_transactions_and_recalls() -> None:
    end = ("EndTransaction", "1700000000000", "DefaultRegion", "g", "orders", "M1", "null", "null", "127.0.0.1:10911")
    text = record(*end, "2", "T1", "COMMIT_MESSAGE", "true")
    text += record("Recall", "1700000000009", "DefaultRegion", "g", "orders", "M1", "true")
    ended, recalled = decode_records(text)
    assert (ended.message_type, ended.transaction_id, ended.transaction_state, ended.from_check, ended.tags) == (
        "Trans_msg_Commit", "T1", "COMMIT_MESSAGE", True, None,
    )  # fmt: skip
    assert (recalled.kind, recalled.topic, recalled.success) == ("Recall", "orders", True)


def test_records_that_cannot_be_read_do_not_hide_others() -> None:
    broken = record("Pub", "soon") + record("Nothing", "1") + record("SubAfter") + record("SubAfter", "R", "M", "x", "")
    assert [found.msg_id for found in decode_records(broken + record(*PUB, "true"))] == ["M1"]


# Few characters, so that separators and numbers meet often.
@given(st.text("\x01\x02|019truefalse.:_-é\U0001f600", max_size=100))
def test_any_text_is_decoded_or_left_out(text: str) -> None:
    for kind in ("", "Pub\x01", "SubBefore\x01", "SubAfter\x01", "EndTransaction\x01", "Recall\x01"):
        decode_records(kind + text.replace("|", "\x01"))


words = st.text("aZ09 .:_\t=é\U0001f600", min_size=1, max_size=20)
messages = st.builds(
    Message,
    st.just("orders"),
    st.binary(max_size=10),
    tags=st.none() | words,
    keys=st.none() | words,
    properties=st.dictionaries(words.map("p".__add__), words, max_size=2),
    delay_level=st.sampled_from([0, 0, 3]),
)


@given(st.lists(messages, min_size=1, max_size=5))
def test_what_a_producer_writes_is_what_was_sent(sent: list[Message]) -> None:
    rows = [
        (0, message.body, own_properties(message) + b"UNIQ_KEY\x01%032d\x02" % number)
        for number, message in enumerate(sent)
    ]
    where = Stored(0, encode_host("127.0.0.1", 10911), 3, 70, tuple(range(1000, 1000 + len(sent))))
    batch = StoredBatch(where, SendStatus.SEND_OK, MessageQueue("orders", "broker-a", 3), rows)
    entry = Sent(batch, "g", "DefaultRegion", "broker:10911", 1_700_000_000_000, 4, success=True)
    lines = entry.lines()
    found = decode_records(b"".join(lines.records).decode())
    assert entry.count == len(found) == len(sent)
    for number, (message, result, each, keys) in enumerate(zip(sent, batch, found, lines.keys, strict=True)):
        assert (each.msg_id, each.offset_msg_id) == (result.msg_id, result.offset_msg_id)
        assert (each.tags or "null", each.keys or "null") == (message.tags or "null", message.keys or "null")
        assert (each.body_length, each.cost_ms, each.success) == (len(message.body), 4, True)
        assert each.message_type == ("Delay_Msg" if "DELAY" in (message.properties or {}) else "Normal_Msg")
        assert keys.decode() == f"{number:032d}" + (f" {message.keys}" if message.keys else "")


def test_what_a_consumer_writes() -> None:
    taken = [ConsumedMessage("M1", "k1 k2", 0, "DefaultRegion"), ConsumedMessage("M2", "", 3, "r2")]
    before, after = Consuming(taken, "g", "R1", 1000).lines(), Consumed(taken, "g", "R1", 1010, 10, 4).lines()
    text = b"".join(before.records + after.records).decode()
    first, second, first_after, second_after = decode_records(text)
    assert (first.msg_id, first.keys, first.retry_times, first.region) == ("M1", "k1 k2", 0, "DefaultRegion")
    assert (second.msg_id, second.keys, second.retry_times, second.region) == ("M2", None, 3, "r2")
    assert (first_after.cost_ms, first_after.success, first_after.context_code) == (5, False, "FAILED")
    assert (second_after.request_id, second_after.timestamp_ms, second_after.group) == ("R1", 1010, "g")
    assert before.keys == after.keys == [b"M1 k1 k2", b"M2"]
