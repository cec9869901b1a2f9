import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.offsets import (
    EARLIEST,
    LATEST,
    DataLost,
    LostRange,
    OffsetRange,
    QueueBounds,
    check_order,
    lost_table,
    parse_offsets,
    resolve,
    split,
    spread,
    within_bounds,
)

WORDS = {"earliest": EARLIEST, "latest": LATEST}
QUEUES = st.builds(MessageQueue, st.sampled_from(["t", "u"]), st.sampled_from(["a", "b", "c"]), st.integers(0, 5))
OFFSET = st.integers(0, 60)
BOUNDS = st.tuples(OFFSET, OFFSET).map(lambda pair: QueueBounds(min(pair), max(pair)))
RANGES = st.dictionaries(QUEUES, st.tuples(OFFSET, st.integers(1, 50))).map(
    lambda found: [OffsetRange(queue, start, start + size) for queue, (start, size) in found.items()]
)


def offsets_of(ranges: list[OffsetRange] | list[LostRange]) -> list[tuple[MessageQueue, int]]:
    return [(one.queue, offset) for one in ranges for offset in range(one.start, one.end)]


@given(st.dictionaries(QUEUES, st.tuples(BOUNDS, OFFSET, OFFSET)))
def test_what_is_read_and_what_is_lost_are_what_was_asked_for(
    asked: dict[MessageQueue, tuple[QueueBounds, int, int]],
) -> None:
    bounds = {queue: bound for queue, (bound, _, _) in asked.items()}
    starts = {queue: start for queue, (_, start, _) in asked.items()}
    ends = {queue: end for queue, (_, _, end) in asked.items()}
    ranges, lost = within_bounds(starts, ends, bounds)
    assert all(one.start < one.end for one in [*ranges, *lost])
    wanted = {(queue, offset) for queue in asked for offset in range(starts[queue], ends[queue])}
    read = offsets_of(ranges)
    assert len(set(read)) == len(read)
    assert set(read) == {(queue, at) for queue, at in wanted if bounds[queue].minimum <= at < bounds[queue].maximum}
    gone = offsets_of(lost)
    assert len(set(gone)) == len(gone)
    beyond = {
        (queue, offset)
        for queue, (bound, start, end) in asked.items()
        if start >= end
        for offset in range(bound.maximum, start)
    }
    assert set(gone) == (wanted - set(read)) | beyond


@given(RANGES, st.integers(0, 40), st.integers(0, 20))
def test_parts_hold_every_offset_once(ranges: list[OffsetRange], min_partitions: int, max_records: int) -> None:
    parts = split(ranges, min_partitions, max_records)
    assert sorted(offsets_of(parts)) == sorted(offsets_of(ranges))
    assert all(one.start < one.end for one in parts)
    total = sum(one.end - one.start for one in ranges)
    assert len(parts) >= min(min_partitions, total)
    if max_records:
        assert all(one.end - one.start <= max_records for one in parts)
    else:
        assert len(parts) == max(len(ranges), min(min_partitions, total))


@given(RANGES, st.integers(0, 40))
def test_parts_of_a_queue_are_of_one_size(ranges: list[OffsetRange], min_partitions: int) -> None:
    sizes: dict[MessageQueue, set[int]] = {}
    for one in split(ranges, min_partitions, 0):
        sizes.setdefault(one.queue, set()).add(one.end - one.start)
    assert all(max(found) - min(found) <= 1 for found in sizes.values())


@given(RANGES)
def test_spreading_keeps_all_and_starts_with_every_broker(ranges: list[OffsetRange]) -> None:
    order = spread(ranges)
    assert sorted(order) == sorted(ranges)
    brokers = {one.queue.broker_name for one in ranges}
    assert {one.queue.broker_name for one in order[: len(brokers)]} == brokers


def test_large_queues_are_split_first() -> None:
    large, small = OffsetRange(MessageQueue("t", "a", 0), 0, 100), OffsetRange(MessageQueue("t", "a", 1), 0, 10)
    parts = split([large, small], 4, 0)
    assert [one.end - one.start for one in parts] == [33, 33, 34, 10]


@given(st.dictionaries(QUEUES, st.integers(-2, 2**62)))
def test_json_offsets_read_back(wanted: dict[MessageQueue, int]) -> None:
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for queue, offset in wanted.items():
        tree.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    assert parse_offsets(json.dumps(tree), "startingOffsets", WORDS) == wanted


@pytest.mark.parametrize("text", ["{", "[]", "5", '{"t":1}', '{"t":{"b":{"x":1}}}', '{"t":{"b":{"0":"1"}}}', "first"])
def test_offsets_of_another_shape_say_what_to_give(text: str) -> None:
    with pytest.raises(UserError, match=r"option startingOffsets: .*give earliest, latest or JSON like"):
        parse_offsets(text, "startingOffsets", WORDS)


@pytest.mark.parametrize("offset", ["-3", "true", "1.5", "null"])
def test_what_is_no_offset_is_refused(offset: str) -> None:
    with pytest.raises(UserError):
        parse_offsets('{"t":{"b":{"0":OFFSET}}}'.replace("OFFSET", offset), "startingOffsets", WORDS)


def test_an_end_cannot_be_earliest() -> None:
    with pytest.raises(UserError, match="option endingOffsets: 'earliest'"):
        parse_offsets("earliest", "endingOffsets", {"latest": LATEST})
    with pytest.raises(UserError, match="offset -2 is not allowed; give latest or JSON"):
        parse_offsets('{"t":{"b":{"0":-2}}}', "endingOffsets", {"latest": LATEST})


def test_offsets_must_name_every_queue_and_no_other() -> None:
    here, there = MessageQueue("t", "a", 0), MessageQueue("t", "b", 0)
    bounds = {here: QueueBounds(3, 9), there: QueueBounds(0, 5)}
    with pytest.raises(UserError, match="gives no offset for t b 0; every queue needs one"):
        resolve({here: 4}, bounds, "startingOffsets")
    with pytest.raises(UserError, match="names t c 1, which no broker has; queues: t a 0, t b 0"):
        resolve({here: 4, there: 1, MessageQueue("t", "c", 1): 0}, bounds, "startingOffsets")
    assert resolve({here: EARLIEST, there: LATEST}, bounds, "startingOffsets") == {here: 3, there: 5}


def test_a_start_after_its_end_is_a_mistake() -> None:
    queue = MessageQueue("t", "a", 0)
    with pytest.raises(UserError, match="startingOffsets 9 is after endingOffsets 4 of t a 0"):
        check_order({queue: 9}, {queue: 4})
    check_order({queue: 4}, {queue: 4})
    check_order({queue: 9}, LATEST)
    check_order({queue: LATEST}, {queue: 4})


def test_data_loss_shows_a_table_and_the_option() -> None:
    lost = [
        LostRange(MessageQueue("orders", "broker-a", 11), 5, 1205, "deleted: the queue starts at 1205"),
        LostRange(MessageQueue("orders", "broker-a", 2), 0, 1, "deleted: the queue starts at 1"),
    ]
    assert lost_table(lost).splitlines() == [
        "  topic   broker    queue  from  to    messages  reason",
        "  orders  broker-a  2      0     0     1         deleted: the queue starts at 1",
        "  orders  broker-a  11     5     1204  1200      deleted: the queue starts at 1205",
    ]
    text = str(DataLost(lost))
    assert text.startswith("1201 messages that should be read do not exist:\n")
    assert "onDataLoss to skip" in text
