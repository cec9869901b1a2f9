import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.message.message import Message, MessageExt, OwnKeyMessage
from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.jobs.copying import (
    ORIGIN,
    Bounds,
    Digest,
    Origin,
    QueueCopy,
    copied_properties,
    copy_of,
    copy_queue,
    goes_on_at,
    grown,
    origin_of,
    plan_text,
    read_plan,
)
from tests.sdk.arrow.records import Stored

SOURCE = MessageQueue("a", "broker-a", 1)
TARGET = MessageQueue("b", "broker-x", 0)


class Lost(Exception):
    """The connection has broken: it is not known whether the message was stored."""


class Memory:
    """Both clusters. The sends whose numbers are in ``breaks`` raise; those with True have stored their message."""

    def __init__(self, count: int, breaks: dict[int, bool]) -> None:
        self.queues: dict[MessageQueue, list[MessageExt]] = {SOURCE: [], TARGET: []}
        self.breaks = breaks
        self.sends = 0
        for number in range(count):
            self.store(SOURCE, OwnKeyMessage("a", b"%d" % number, unique_key=f"K{number}", tags="t", keys=f"k{number}"))

    def store(self, queue: MessageQueue, message: Message) -> None:
        assert isinstance(message, OwnKeyMessage)
        properties = {**(message.properties or {}), "UNIQ_KEY": message.encoded_key[9:-1].decode()}
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
        offset = len(self.queues[queue])
        stored = Stored(
            topic=queue.topic, queue_id=queue.queue_id, queue_offset=offset, body=message.body, properties=text
        )
        self.queues[queue].append(MessageExt(stored.encode(), 0, queue.broker_name))

    def max_offset(self, mq: MessageQueue) -> int:
        return len(self.queues[mq])

    def messages(self, mq: MessageQueue, start: int, end: int) -> list[MessageExt]:
        return self.queues[mq][start:end]

    def send(self, message: Message, *, queue: MessageQueue) -> None:
        self.sends += 1
        stores = self.breaks.get(self.sends, True)
        if stores:
            self.store(queue, message)
        if self.sends in self.breaks:
            raise Lost


@given(
    st.integers(0, 20),
    st.dictionaries(st.integers(1, 25), st.booleans(), max_size=6),
    st.integers(0, 4),
    st.integers(0, 3),
)
def test_however_often_it_is_interrupted_every_message_arrives_once_and_in_order(
    count: int, breaks: dict[int, bool], start: int, before: int
) -> None:
    memory = Memory(count, breaks)
    for number in range(before):  # the target had messages of others
        memory.store(TARGET, OwnKeyMessage("b", b"other", unique_key=f"O{number}"))
    copy = QueueCopy(SOURCE, min(start, count), count, TARGET, before)
    for _ in range(len(breaks) + 1):
        try:
            result = copy_queue(copy, memory, memory, memory)
            break
        except Lost:
            continue
    assert result.is_right and result.target_count == count - min(start, count)
    copied = memory.queues[TARGET][before:]
    assert [one.body for one in copied] == [one.body for one in memory.queues[SOURCE][min(start, count) :]]
    for one in copied:
        origin = origin_of(one.properties)
        assert origin is not None
        source = memory.queues[SOURCE][origin.offset]
        assert (one.msg_id, one.tags, one.keys, one.body) == (source.msg_id, source.tags, source.keys, source.body)


def test_a_difference_is_seen() -> None:
    memory = Memory(3, {})
    copy = QueueCopy(SOURCE, 0, 3, TARGET, 0)
    assert copy_queue(copy, memory, memory, memory).is_right
    memory.queues[TARGET].reverse()
    result = copy_queue(copy, memory, memory, memory)
    assert result.source_count == result.target_count and not result.is_right


@pytest.mark.parametrize("other", [("K", {"p": "1"}, b"x", 1), ("K", {"p": "2"}, b"x", 0), ("L", {"p": "1"}, b"x", 0)])
def test_the_digest_covers_key_properties_and_flag(other: tuple[str, dict[str, str], bytes, int]) -> None:
    assert Digest().add("K", {"p": "1"}, b"x", 0) != Digest().add(*other)


def test_what_one_delivery_needed_is_not_copied() -> None:
    assert copied_properties({"TAGS": "t", "DELAY": "3", "TRAN_MSG": "true", "mine": "x"}) == {"TAGS": "t", "mine": "x"}


def test_a_copy_of_a_copy_names_where_it_was_copied_from_last() -> None:
    memory = Memory(1, {})
    memory.send(copy_of(memory.queues[SOURCE][0], "b"), queue=TARGET)
    properties = copy_of(memory.queues[TARGET][0], "c").properties
    assert properties is not None and properties[ORIGIN].startswith("broker-x:0:0:")


@pytest.mark.parametrize("text", ["", "a:b", "a:1:2:x", "1:2:3"])
def test_other_properties_of_that_name_are_no_origin(text: str) -> None:
    assert origin_of({ORIGIN: text}) is None


@given(st.text(), st.integers(0, 9), st.integers(0, 99), st.integers(0, 99))
def test_an_origin_is_read_as_it_was_written(broker: str, queue: int, offset: int, born_ms: int) -> None:
    origin = Origin(broker, queue, offset, born_ms)
    assert origin_of({ORIGIN: origin.text()}) == origin


def test_copies_of_other_queues_do_not_count() -> None:
    copy = QueueCopy(SOURCE, 3, 9, TARGET, 0)
    assert goes_on_at(copy, [None, Origin("broker-a", 2, 7, 0), Origin("broker-b", 1, 7, 0)]) == 3
    assert goes_on_at(copy, [Origin("broker-a", 1, 4, 0), Origin("broker-a", 1, 50, 0)]) == 5


def test_each_queue_has_a_target_of_its_own() -> None:
    ours = {MessageQueue("a", "x", n): Bounds(n, 9) for n in range(3)}
    theirs = {MessageQueue("b", "y", n): Bounds(0, 4 + n) for n in range(4)}
    assert grown([], dict(reversed(ours.items())), theirs) == [
        QueueCopy(one, *bounds, two, theirs[two].end) for (one, bounds), two in zip(ours.items(), theirs, strict=False)
    ]
    with pytest.raises(UserError, match=r"has 3 queues, the target 2: .*updateTopic"):
        grown([], ours, dict(list(theirs.items())[:2]))


def test_a_plan_that_lacks_queues_is_completed_and_else_stays_as_it_is() -> None:
    ours = {MessageQueue("a", broker, n): Bounds(0, 9) for broker in ("x", "w") for n in range(2)}
    theirs = {MessageQueue("b", "y", n): Bounds(0, 4) for n in range(4)}
    half = grown([], {queue: at for queue, at in ours.items() if queue.broker_name == "x"}, theirs)
    # Since the first run, both topics have got more messages.
    later = {queue: Bounds(0, 50) for queue in ours}
    whole = grown(half, later, {queue: Bounds(0, 20) for queue in theirs})
    assert whole[:2] == half
    assert [(one.source.broker_name, one.end, one.target.queue_id, one.target_start) for one in whole[2:]] == [
        ("w", 50, 2, 20), ("w", 50, 3, 20),
    ]  # fmt: skip
    assert grown(whole, later, theirs) == whole
    with pytest.raises(UserError, match="has 4 queues, the target 3"):
        grown(half, later, {queue: at for queue, at in theirs.items() if queue.queue_id < 3})


def test_a_plan_is_read_by_the_same_copy_only() -> None:
    what = {"topic": "a", "to": "x:1"}
    copies = [QueueCopy(SOURCE, 0, 9, TARGET, 4)]
    assert read_plan(plan_text(what, copies), what) == copies
    with pytest.raises(UserError, match=r"of another copy \(topic a\)"):
        read_plan(plan_text(what, copies), {**what, "topic": "z"})
    with pytest.raises(UserError, match="cannot be read"):
        read_plan("{", what)
