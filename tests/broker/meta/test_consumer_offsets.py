"""Offsets: commits are cheap, changes go to the journal by interval, removals are not undone."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from skylark.broker.meta import consumer_offsets
from skylark.broker.meta.consumer_offsets import SLICE
from skylark.mqcommon.errors import DiskFull
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.body import DataVersion
from tests.broker.meta.support import MetadataDir


def flush(meta: MetadataDir) -> None:
    changed = meta.offsets.pop_changed()
    for start in range(0, len(changed), SLICE):
        meta.offsets.append_changed(changed[start : start + SLICE])


def test_a_commit_is_what_a_query_finds() -> None:
    offsets = MetadataDir().offsets
    assert offsets.query("g", "T", 0) == -1
    offsets.commit("g", "T", 0, 7)
    assert offsets.query("g", "T", 0) == 7
    offsets.commit("g", "T", 0, 3)  # back, on purpose: a group may start over
    assert offsets.query("g", "T", 0) == 3
    assert offsets.query("g", "T", 1) == -1
    assert offsets.query("h", "T", 0) == -1


def test_offsets_that_a_slave_committed_for_its_master_move_forward_only() -> None:
    meta = MetadataDir()
    meta.offsets.commit("g", "T", 0, 7)
    meta.offsets.commit("g", "T", 1, 7)
    ends = {("T", 0): 9, ("%RETRY%g", 0): 1, ("T", 4): 5}
    table = {"T@g": {0: 9, 1: 3, 2: 0, 3: -1, 4: 6}, "%RETRY%g@g": {0: 1}}
    meta.offsets.advance(table, lambda topic, queue_id: ends.get((topic, queue_id), 0))
    assert meta.offsets.table() == {"T@g": {0: 9, 1: 7, 2: 0}, "%RETRY%g@g": {0: 1}}
    flush(meta)
    meta.kill()
    assert meta.offsets.table() == {"T@g": {0: 9, 1: 7, 2: 0}, "%RETRY%g@g": {0: 1}}


def test_only_what_changed_is_appended() -> None:
    meta = MetadataDir()
    for queue_id in range(10_000):
        meta.offsets.commit(f"group{queue_id % 10}", f"topic{queue_id % 100}", queue_id // 100, 1_000_000)
    flush(meta)
    first = meta.fs.used()
    assert first < 400_000
    for _ in range(5):
        for queue_id in range(10):
            meta.offsets.commit("group0", "topic0", queue_id, meta.offsets.query("group0", "topic0", queue_id) + 1)
        flush(meta)
    assert meta.fs.used() - first < 1000


def test_groups_and_topics_find_each_other() -> None:
    offsets = MetadataDir().offsets
    for group, topic in [("g", "T"), ("g", "U"), ("h", "T")]:
        offsets.commit(group, topic, 0, 1)
    assert finish(offsets.topics_of("g")) == ["T", "U"]
    assert finish(offsets.groups_of("T")) == ["g", "h"]
    assert finish(offsets.topics_of("nobody")) == []


def test_many_keys_are_looked_at_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_offsets, "KEYS", 100)
    offsets = MetadataDir().offsets
    removals = (
        lambda: offsets.remove_group("g"),
        lambda: offsets.remove_topic("T1"),
        lambda: offsets.keep_only(["T1@g", "new@g"]),
    )
    for removal in removals:
        for number in range(1_000):
            offsets.commit("g", f"T{number}", 0, 1)
        steps = removal()
        for count, _ in enumerate(steps, 1):
            if count == 5:
                offsets.commit("g", "new", 0, 1)  # what comes between two steps stays
        assert count >= 10
        assert offsets.query("g", "new", 0) == 1
    assert offsets.table().keys() == {"T1@g", "new@g"}


@pytest.mark.parametrize("by", ["group", "topic", "master"])
def test_many_removals_are_many_records(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_offsets, "SLICE", 10)
    meta = MetadataDir()
    for number in range(100):
        meta.offsets.commit("g" if by != "topic" else f"g{number}", "T" if by == "topic" else f"T{number}", 0, 1)
    flush(meta)
    sizes: list[int] = []
    append = meta.journal.append

    def noted(kind: str, payload: Any) -> None:
        sizes.append(len(payload))
        append(kind, payload)

    monkeypatch.setattr(meta.journal, "append", noted)
    offsets = meta.offsets
    removal = {"group": offsets.remove_group("g"), "topic": offsets.remove_topic("T"), "master": offsets.keep_only({})}
    finish(removal[by])
    assert sizes == [10] * 10
    meta.kill()
    assert meta.offsets.table() == {}


def test_a_snapshot_is_made_later_and_what_changed_meanwhile_is_replayed_on_it() -> None:
    meta = MetadataDir()
    for number in range(3 * SLICE):
        meta.offsets.commit("g", f"T{number}", 0, 1)
    flush(meta)
    compaction = meta.journal.begin_compaction()
    records = meta.metadata.state()
    meta.offsets.commit("g", "T1", 0, 2)
    flush(meta)

    def meanwhile() -> Iterator[tuple[str, Any]]:
        for number, record in enumerate(records):
            yield record
            if number == 1:
                finish(meta.offsets.remove_topic("T0"))
                finish(meta.offsets.remove_topic(f"T{3 * SLICE - 1}"))
                meta.offsets.commit("g", "T2", 0, 7)
                meta.offsets.commit("h", "T2", 0, 8)
                flush(meta)

    compaction.write(meanwhile())
    meta.journal.end_compaction(compaction)
    now, version = dict(meta.offsets.table()), meta.offsets.data_version
    meta.kill()
    assert meta.offsets.table() == now
    assert meta.offsets.data_version == version
    assert meta.offsets.query("g", "T1", 0) == 2


def test_removals_are_journalled_at_once_and_not_undone_by_later_flushes() -> None:
    meta = MetadataDir()
    for group in "gh":
        for topic in "TU":
            meta.offsets.commit(group, topic, 0, 5)
    changed = meta.offsets.pop_changed()
    finish(meta.offsets.remove_group("g"))
    finish(meta.offsets.remove_topic("U"))
    finish(meta.offsets.remove_topic("nothing"))
    meta.offsets.append_changed(changed)
    meta.kill()
    assert meta.offsets.table() == {"T@h": {0: 5}}


def test_a_failed_append_keeps_the_changes_for_the_next_interval() -> None:
    meta = MetadataDir()
    meta.offsets.commit("g", "T", 0, 7)
    meta.fs.capacity = meta.fs.used()
    with pytest.raises(DiskFull):
        flush(meta)
    assert meta.offsets.dirty
    meta.fs.capacity = 1 << 40
    flush(meta)
    meta.kill()
    assert meta.offsets.query("g", "T", 0) == 7


GROUPS = st.sampled_from("gh")
TOPICS = st.sampled_from("TU")


class OffsetsModel(RuleBasedStateMachine):
    """After a kill: what was flushed, less what was removed since."""

    @initialize()
    def start(self) -> None:
        self.meta = MetadataDir()
        self.now: dict[tuple[str, str, int], int] = {}
        self.flushed: dict[tuple[str, str, int], int] = {}

    @rule(group=GROUPS, topic=TOPICS, queue_id=st.integers(0, 2), offset=st.integers(-1, 9))
    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.meta.offsets.commit(group, topic, queue_id, offset)
        if offset >= 0:
            self.now[group, topic, queue_id] = offset

    @rule()
    def flush(self) -> None:
        flush(self.meta)
        self.flushed = dict(self.now)

    @rule(group=GROUPS)
    def remove_group(self, group: str) -> None:
        finish(self.meta.offsets.remove_group(group))
        for table in (self.now, self.flushed):
            for key in [key for key in table if key[0] == group]:
                del table[key]

    @rule(topic=TOPICS)
    def remove_topic(self, topic: str) -> None:
        finish(self.meta.offsets.remove_topic(topic))
        for table in (self.now, self.flushed):
            for key in [key for key in table if key[1] == topic]:
                del table[key]

    @rule()
    def compact(self) -> None:
        journal = self.meta.journal
        compaction = journal.begin_compaction()
        compaction.write(self.meta.metadata.state())
        journal.end_compaction(compaction)
        self.flushed = dict(self.now)

    @rule()
    def kill(self) -> None:
        self.meta.kill()
        self.now = dict(self.flushed)
        self.check()

    @rule(seed=st.integers(0, 2**32))
    def power_loss_after_a_sync(self, seed: int) -> None:
        self.meta.journal.sync()
        self.meta.fs = self.meta.fs.crash(Random(seed))
        self.meta.open()
        self.now = dict(self.flushed)
        self.check()

    def check(self) -> None:
        table = self.meta.offsets.table()
        found = {
            (key.partition("@")[2], key.partition("@")[0], queue_id): offset
            for key, queues in table.items()
            for queue_id, offset in queues.items()
        }
        assert found == self.now


OffsetsModel.TestCase.settings = settings(stateful_step_count=30)
TestOffsetsModel = OffsetsModel.TestCase


@given(
    st.lists(
        st.one_of(
            st.tuples(GROUPS, TOPICS, st.integers(0, 2), st.integers(-1, 5)),
            st.tuples(st.just("remove"), TOPICS),
            st.just("copy"),
        ),
        max_size=40,
    ),
    st.integers(1, 6),
)
def test_a_copy_that_is_kept_up_with_what_changed_is_the_whole(steps: list[Any], recent: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumer_offsets, "RECENT", recent)
        master, slave = MetadataDir().offsets, MetadataDir().offsets
        known = DataVersion()
        for step in [*steps, "copy"]:
            if step == "copy":
                part = master.changed_since(known)
                if part is None:
                    finish(slave.keep_only(master.table()))
                slave.mirror(master.table() if part is None else part, is_whole=part is None)
                known = master.live_version
                assert slave.table() == master.table()
            elif step[0] == "remove":
                finish(master.remove_topic(step[1]))
            else:
                group, topic, queue_id, offset = step
                master.commit(group, topic, queue_id, offset)


def test_changes_that_are_too_many_or_of_another_run_need_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_offsets, "RECENT", 3)
    offsets = MetadataDir().offsets
    start = offsets.live_version
    for number in range(3):
        offsets.commit("g", "T", number, 1)
    assert offsets.changed_since(start) == {"T@g": {0: 1, 1: 1, 2: 1}}
    assert offsets.changed_since(offsets.live_version) == {}
    offsets.commit("g", "T", 0, 2)
    assert offsets.changed_since(start) is None
    now = offsets.live_version
    assert offsets.changed_since(DataVersion(0, now.timestamp - 1, now.counter)) is None
    assert offsets.changed_since(DataVersion(0, now.timestamp, now.counter + 1)) is None
