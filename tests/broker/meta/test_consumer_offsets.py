"""Offsets: commits are cheap, changes go to the journal by interval, removals are not undone."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from broker.meta import consumer_offsets
from broker.meta.consumer_offsets import SLICE
from mqcommon.errors import DiskFull
from remoting.net.steps import finish
from remoting.protocol.bodies.data_version import DataVersion
from tests.broker.meta.support import Room


def flush(room: Room) -> None:
    changed = room.offsets.take_changed()
    for start in range(0, len(changed), SLICE):
        room.offsets.append_changed(changed[start : start + SLICE])


def test_a_commit_is_what_a_query_finds() -> None:
    offsets = Room().offsets
    assert offsets.query("g", "T", 0) == -1
    offsets.commit("g", "T", 0, 7)
    assert offsets.query("g", "T", 0) == 7
    offsets.commit("g", "T", 0, 3)  # back, on purpose: a group may start over
    assert offsets.query("g", "T", 0) == 3
    assert offsets.query("g", "T", 1) == -1
    assert offsets.query("h", "T", 0) == -1


def test_what_a_slave_had_for_its_master_moves_offsets_forward_only() -> None:
    room = Room()
    room.offsets.commit("g", "T", 0, 7)
    room.offsets.commit("g", "T", 1, 7)
    room.offsets.advance({"T@g": {0: 9, 1: 3, 2: 0, 3: -1}, "%RETRY%g@g": {0: 1}})
    assert room.offsets.table() == {"T@g": {0: 9, 1: 7, 2: 0}, "%RETRY%g@g": {0: 1}}
    flush(room)
    room.kill()
    assert room.offsets.table() == {"T@g": {0: 9, 1: 7, 2: 0}, "%RETRY%g@g": {0: 1}}


def test_negative_offsets_are_ignored() -> None:
    offsets = Room().offsets
    offsets.commit("g", "T", 0, -1)
    assert offsets.query("g", "T", 0) == -1
    assert not offsets.dirty
    assert offsets.table() == {}


def test_what_was_appended_comes_back() -> None:
    room = Room()
    room.offsets.commit("g", "T", 0, 7)
    flush(room)
    room.offsets.commit("g", "T", 1, 8)
    room.kill()
    assert room.offsets.table() == {"T@g": {0: 7}}


def test_the_same_offset_again_is_no_change() -> None:
    room = Room()
    room.offsets.commit("g", "T", 0, 7)
    flush(room)
    room.offsets.commit("g", "T", 0, 7)
    assert not room.offsets.dirty


def test_only_what_changed_is_appended() -> None:
    room = Room()
    for queue_id in range(100_000):
        room.offsets.commit(f"group{queue_id % 10}", f"topic{queue_id % 1000}", queue_id // 1000, 1_000_000)
    flush(room)
    first = room.fs.used()
    assert first < 4_000_000
    for _ in range(5):
        for queue_id in range(10):
            room.offsets.commit("group0", "topic0", queue_id, room.offsets.query("group0", "topic0", queue_id) + 1)
        flush(room)
    assert room.fs.used() - first < 1000


def test_groups_and_topics_find_each_other() -> None:
    offsets = Room().offsets
    for group, topic in [("g", "T"), ("g", "U"), ("h", "T")]:
        offsets.commit(group, topic, 0, 1)
    assert finish(offsets.topics_of("g")) == ["T", "U"]
    assert finish(offsets.groups_of("T")) == ["g", "h"]
    assert finish(offsets.topics_of("nobody")) == []


def test_many_keys_are_looked_at_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_offsets, "KEYS", 100)
    offsets = Room().offsets
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
    room = Room()
    for number in range(100):
        room.offsets.commit("g" if by != "topic" else f"g{number}", "T" if by == "topic" else f"T{number}", 0, 1)
    flush(room)
    sizes: list[int] = []
    append = room.journal.append

    def noted(kind: str, payload: Any) -> None:
        sizes.append(len(payload))
        append(kind, payload)

    monkeypatch.setattr(room.journal, "append", noted)
    offsets = room.offsets
    removal = {"group": offsets.remove_group("g"), "topic": offsets.remove_topic("T"), "master": offsets.keep_only({})}
    finish(removal[by])
    assert sizes == [10] * 10
    room.kill()
    assert room.offsets.table() == {}


def test_a_snapshot_is_made_later_and_what_changed_meanwhile_is_replayed_on_it() -> None:
    room = Room()
    for number in range(3 * SLICE):
        room.offsets.commit("g", f"T{number}", 0, 1)
    flush(room)
    compaction = room.journal.begin_compaction()
    records = room.metadata.state()
    room.offsets.commit("g", "T1", 0, 2)
    flush(room)

    def meanwhile() -> Iterator[tuple[str, Any]]:
        for number, record in enumerate(records):
            yield record
            if number == 1:
                finish(room.offsets.remove_topic("T0"))
                finish(room.offsets.remove_topic(f"T{3 * SLICE - 1}"))
                room.offsets.commit("g", "T2", 0, 7)
                room.offsets.commit("h", "T2", 0, 8)
                flush(room)

    compaction.write(meanwhile())
    room.journal.end_compaction(compaction)
    now, version = dict(room.offsets.table()), room.offsets.data_version
    room.kill()
    assert room.offsets.table() == now
    assert room.offsets.data_version == version
    assert room.offsets.query("g", "T1", 0) == 2


def test_removals_are_journalled_at_once_and_not_undone_by_later_flushes() -> None:
    room = Room()
    for group in "gh":
        for topic in "TU":
            room.offsets.commit(group, topic, 0, 5)
    changed = room.offsets.take_changed()
    finish(room.offsets.remove_group("g"))
    finish(room.offsets.remove_topic("U"))
    finish(room.offsets.remove_topic("nothing"))
    room.offsets.append_changed(changed)
    room.kill()
    assert room.offsets.table() == {"T@h": {0: 5}}


def test_a_failed_append_keeps_the_changes_for_the_next_interval() -> None:
    room = Room()
    room.offsets.commit("g", "T", 0, 7)
    room.fs.capacity = room.fs.used()
    with pytest.raises(DiskFull):
        flush(room)
    assert room.offsets.dirty
    room.fs.capacity = 1 << 40
    flush(room)
    room.kill()
    assert room.offsets.query("g", "T", 0) == 7


GROUPS = st.sampled_from("gh")
TOPICS = st.sampled_from("TU")


class OffsetsModel(RuleBasedStateMachine):
    """After a kill: what was flushed, less what was removed since."""

    @initialize()
    def start(self) -> None:
        self.room = Room()
        self.now: dict[tuple[str, str, int], int] = {}
        self.flushed: dict[tuple[str, str, int], int] = {}

    @rule(group=GROUPS, topic=TOPICS, queue_id=st.integers(0, 2), offset=st.integers(-1, 9))
    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.room.offsets.commit(group, topic, queue_id, offset)
        if offset >= 0:
            self.now[group, topic, queue_id] = offset

    @rule()
    def flush(self) -> None:
        flush(self.room)
        self.flushed = dict(self.now)

    @rule(group=GROUPS)
    def remove_group(self, group: str) -> None:
        finish(self.room.offsets.remove_group(group))
        for table in (self.now, self.flushed):
            for key in [key for key in table if key[0] == group]:
                del table[key]

    @rule(topic=TOPICS)
    def remove_topic(self, topic: str) -> None:
        finish(self.room.offsets.remove_topic(topic))
        for table in (self.now, self.flushed):
            for key in [key for key in table if key[1] == topic]:
                del table[key]

    @rule()
    def compact(self) -> None:
        journal = self.room.journal
        compaction = journal.begin_compaction()
        compaction.write(self.room.metadata.state())
        journal.end_compaction(compaction)
        self.flushed = dict(self.now)

    @rule()
    def kill(self) -> None:
        self.room.kill()
        self.now = dict(self.flushed)
        self.check()

    @rule(seed=st.integers(0, 2**32))
    def power_loss_after_a_sync(self, seed: int) -> None:
        self.room.journal.sync()
        self.room.fs = self.room.fs.crash(Random(seed))
        self.room.open()
        self.now = dict(self.flushed)
        self.check()

    def check(self) -> None:
        table = self.room.offsets.table()
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
        master, slave = Room().offsets, Room().offsets
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
    offsets = Room().offsets
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
