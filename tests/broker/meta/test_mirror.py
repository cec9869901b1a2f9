"""What a slave takes over: its master's tables under the master's versions, and only what differs is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import DiskFull
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.offsets import DelayOffsetTable
from skylark.remoting.protocol.requests.topics import LogicQueueMappingItem, TopicConfig, TopicQueueMappingDetail
from tests.broker.meta.support import MetadataDir
from tests.broker.meta.test_consumer_offsets import flush


def take_over(slave: MetadataDir, master: MetadataDir) -> int:
    """All tables; how many records the slave wrote."""
    before, appended = slave.journal.on_append, []
    slave.journal.on_append = lambda: appended.append(1)
    for _ in slave.topics.mirror(master.topics.all(), master.topics.static.all(), master.topics.data_version):
        pass
    groups = master.groups
    for _ in slave.groups.mirror(groups.all(), groups.forbidden, groups.data_version):
        pass
    finish(slave.offsets.keep_only(master.offsets.table()))
    slave.offsets.mirror(master.offsets.table(), is_whole=True)
    flush(slave)
    slave.offsets.adopt_version(master.offsets.data_version)
    slave.metadata.delay_offsets.put(master.metadata.delay_offsets.table)
    slave.journal.on_append = before
    return len(appended)


def tables(meta: MetadataDir) -> tuple[object, ...]:
    metadata = meta.metadata
    return (
        metadata.topics.all(), metadata.topics.static.all(), metadata.groups.all(), meta.offsets.table(),
        metadata.delay_offsets.table,
    )  # fmt: skip


def versions(meta: MetadataDir) -> list[DataVersion]:
    return [meta.topics.data_version, meta.groups.data_version, meta.offsets.data_version]


NAMES = st.sampled_from(["A", "B", "C", "D"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("topic"), NAMES, st.integers(1, 3)),
        st.tuples(st.just("static topic"), NAMES, st.integers(1, 3)),
        st.tuples(st.just("no topic"), NAMES, st.just(0)),
        st.tuples(st.just("group"), NAMES, st.integers(1, 3)),
        st.tuples(st.just("no group"), NAMES, st.just(0)),
        st.tuples(st.just("commit"), NAMES, st.integers(0, 3)),
        st.tuples(st.just("no commits"), NAMES, st.just(0)),
        st.tuples(st.just("delay"), NAMES, st.integers(1, 3)),
    ),
    max_size=12,
)


def change(meta: MetadataDir, steps: list[tuple[str, str, int]]) -> None:
    for what, name, number in steps:
        match what:
            case "topic":
                meta.topics.put(TopicConfig(name, number, number))
            case "static topic":
                stretches = {0: [LogicQueueMappingItem(0, number, "broker-a")]}
                mapping = TopicQueueMappingDetail(name, bname="broker-a", epoch=number, hosted_queues=stretches)
                meta.topics.put_static(TopicConfig(name, number, number), mapping)
            case "no topic":
                meta.topics.delete(name)
            case "group":
                meta.groups.put(SubscriptionGroupConfig(name, retry_max_times=number))
            case "no group":
                meta.groups.delete(name)
            case "commit":
                meta.offsets.commit("g", name, number, 10 * number)
                meta.offsets.commit("g", name, 0, number)
            case "no commits":
                finish(meta.offsets.remove_topic(name))
            case "delay":
                meta.metadata.delay_offsets.put(DelayOffsetTable({number: number}, DataVersion(0, 1, number)))
    flush(meta)


@given(STEPS, STEPS, STEPS)
def test_a_slave_has_what_its_master_has_and_still_after_a_crash(
    first: list[tuple[str, str, int]], own: list[tuple[str, str, int]], later: list[tuple[str, str, int]]
) -> None:
    master, slave = MetadataDir(), MetadataDir()
    change(master, first)
    change(slave, own)
    for steps in ([], later):
        change(master, steps)
        take_over(slave, master)
        assert tables(slave) == tables(master)
        assert versions(slave) == versions(master)
        assert take_over(slave, master) == 0
    slave.kill()
    assert tables(slave) == tables(master)


def test_negative_offsets_of_a_java_master_are_no_offsets() -> None:
    slave = MetadataDir()
    slave.offsets.mirror({"T@g": {0: -1, 1: 5}}, is_whole=True)
    assert slave.offsets.table() == {"T@g": {1: 5}}


def test_rows_that_could_not_be_written_are_copied_the_next_time() -> None:
    master, slave = MetadataDir(), MetadataDir()
    change(master, [("topic", "A", 1), ("group", "A", 1), ("commit", "A", 1), ("delay", "A", 1)])
    slave.fs.capacity = slave.fs.used()
    with pytest.raises(DiskFull):
        take_over(slave, master)
    assert slave.topics.data_version != master.topics.data_version
    slave.fs.capacity = 1 << 40
    take_over(slave, master)
    assert tables(slave) == tables(master)
    assert versions(slave) == versions(master)


def test_delay_offsets_of_a_slave_that_acted_move_forward_only() -> None:
    master = MetadataDir()
    delay_offsets = master.metadata.delay_offsets
    delay_offsets.put(DelayOffsetTable({1: 5, 2: 5}, DataVersion(0, 9, 3)))
    delay_offsets.advance(DelayOffsetTable({1: 4, 2: 5}, DataVersion(0, 99, 8)))
    assert delay_offsets.table == DelayOffsetTable({1: 5, 2: 5}, DataVersion(0, 9, 3))
    delay_offsets.advance(DelayOffsetTable({1: 4, 2: 6, 3: 0}, DataVersion(0, 99, 8)))
    assert delay_offsets.table == DelayOffsetTable({1: 5, 2: 6, 3: 0}, DataVersion(0, 99, 4))


def test_a_slave_serves_a_new_group_and_leaves_it_to_its_master_to_keep_it() -> None:
    slave = MetadataDir()
    slave.groups.is_mirror = slave.topics.is_mirror = True
    known, version = set(slave.groups.names()), slave.groups.data_version
    assert slave.groups.get_or_create("g") == SubscriptionGroupConfig("g")
    assert slave.topics.create_retry_topic("g") is None
    assert set(slave.groups.names()) == known
    assert slave.groups.data_version == version
