"""The topic table: what a send creates, what survives, what NameServers are told of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.meta.topics import RecentChanges
from skylark.mqcommon.errors import DiskFull
from skylark.mqcommon.names import PERM_INHERIT, PERM_READ, PERM_READ_WRITE
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.meta.support import MetadataDir, options

# golden: REGISTER_BROKER of Apache RocketMQ 5.3.3
SYSTEM_TOPICS = {
    "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
    "BenchmarkTest": (1024, 6),
    "OFFSET_MOVED_EVENT": (1, 6),
    "TBW102": (8, 7),
    "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 6),
    "SELF_TEST_TOPIC": (1, 6),
    "DefaultCluster": (16, 7),
    "SCHEDULE_TOPIC_XXXX": (18, 6),
    "RMQ_SYS_TRACE_TOPIC": (1, 6),
    "DefaultCluster_REPLY_TOPIC": (1, 6),
    "rmq_sys_wheel_timer": (1, 6),
    "rmq_sys_DLQ_RESENT": (1, 6),
    "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1),
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
    "broker-a": (1, 7),
}


def test_system_topics_are_those_of_rocketmq() -> None:
    topics = MetadataDir(options(trace_topic_enable=True)).topics
    assert {name: (c.write_queue_nums, c.perm) for name, c in topics.all().items()} == SYSTEM_TOPICS
    assert all(topics.is_system(name) for name in SYSTEM_TOPICS)


def test_without_auto_creation_there_is_no_tbw102() -> None:
    meta = MetadataDir(options(auto_create_topic_enable=False))
    assert meta.topics.get("TBW102") is None
    assert meta.topics.create_on_send("T", "TBW102", 4) is None


def test_system_topics_are_not_journalled_and_follow_the_options() -> None:
    meta = MetadataDir()
    meta.topics.put(TopicConfig("T"))
    meta.options = options(auto_create_topic_enable=False, broker_name="broker-b")
    meta.kill()
    assert meta.topics.get("TBW102") is None
    assert meta.topics.get("broker-a") is None
    assert meta.topics.get("broker-b") is not None
    assert meta.topics.get("T") is not None


def test_a_system_topic_that_a_user_changed_stays_changed() -> None:
    meta = MetadataDir()
    meta.topics.put(TopicConfig("DefaultCluster", 4, 4))
    meta.kill()
    config = meta.topics.get("DefaultCluster")
    assert config is not None
    assert config.write_queue_nums == 4


@pytest.mark.parametrize(("asked", "made"), [(4, 4), (100, 8), (8, 8), (0, 1), (-3, 1)])
def test_a_send_creates_its_topic_after_tbw102(asked: int, made: int) -> None:
    meta = MetadataDir()
    config = meta.topics.create_on_send("T", "TBW102", asked, "127.0.0.1:5")
    assert config == TopicConfig("T", made, made, PERM_READ_WRITE)
    assert meta.topics.create_on_send("T", "nothing", 1) is config
    meta.kill()
    assert meta.topics.get("T") == config


def test_a_send_takes_perm_and_filter_type_of_another_default_topic() -> None:
    topics = MetadataDir().topics
    topics.put(TopicConfig("Default", 2, 3, PERM_READ | PERM_INHERIT, "MULTI_TAG"))
    assert topics.create_on_send("T", "Default", 8) == TopicConfig("T", 3, 3, PERM_READ, "MULTI_TAG")


def test_a_default_topic_without_the_inherit_bit_creates_nothing() -> None:
    topics = MetadataDir().topics
    topics.put(TopicConfig("Default", 2, 2, PERM_READ_WRITE))
    assert topics.create_on_send("T", "Default", 8) is None
    assert topics.create_on_send("T", "NoSuchTopic", 8) is None
    assert topics.get("T") is None


def test_a_retry_topic_is_created_even_without_auto_creation() -> None:
    topics = MetadataDir(options(auto_create_topic_enable=False)).topics
    assert topics.create_on_send("%RETRY%g", "TBW102", 8) == TopicConfig("%RETRY%g", 1, 1, PERM_READ_WRITE)
    assert topics.create_retry_topic("h", 2) == TopicConfig("%RETRY%h", 2, 2, PERM_READ_WRITE)
    assert topics.create_retry_topic("h", 5).read_queue_nums == 2
    assert topics.create_dlq_topic("h") == TopicConfig("%DLQ%h", 1, 1, PERM_READ_WRITE)


def test_every_change_raises_the_version_and_is_told() -> None:
    meta = MetadataDir()
    told: list[int] = []
    meta.topics.on_change.append(lambda: told.append(meta.topics.data_version.counter))
    meta.topics.put(TopicConfig("T"))
    meta.topics.create_on_send("U", "TBW102", 1)
    meta.topics.create_on_send("U", "TBW102", 1)
    meta.topics.delete("T")
    meta.topics.delete("T")
    meta.topics.changed()
    assert told == [2, 3, 4, 5]


def test_a_change_that_cannot_be_written_does_not_happen() -> None:
    meta = MetadataDir()
    version = meta.topics.data_version
    meta.fs.capacity = meta.fs.used()
    with pytest.raises(DiskFull):
        meta.topics.put(TopicConfig("T"))
    with pytest.raises(DiskFull):
        meta.topics.create_on_send("U", "TBW102", 1)
    assert meta.topics.get("T") is None
    assert meta.topics.get("U") is None
    assert meta.topics.data_version == version


@given(st.lists(st.sampled_from("abcd-"), max_size=30), st.integers(1, 10), st.integers(-2, 32))
def test_recent_changes_tell_all_names_or_none(notes: str, limit: int, asked: int) -> None:
    changes = RecentChanges(limit)
    for note in notes:
        if note == "-":
            changes.add_all()
        else:
            changes.add(note)
    found = changes.since(asked)
    missed = notes[max(asked, 0) :]
    if 0 <= asked <= len(notes) and len(missed) <= limit and "-" not in missed:
        assert found == list(dict.fromkeys(missed))
    else:
        assert found is None


def test_a_topic_that_is_made_again_has_another_creation_stamp() -> None:
    meta = MetadataDir()
    meta.topics.put(TopicConfig("T", 4, 4))
    first = meta.topics.created_ms("T")
    assert first == meta.clock.now_ms()
    meta.topics.put(TopicConfig("T", 8, 8))
    assert meta.topics.created_ms("T") == first, "a change of settings is no other topic"
    meta.topics.delete("T")
    assert meta.topics.created_ms("T") is None
    assert meta.topics.create_on_send("T", "TBW102", 4) is meta.topics.get("T")
    second = meta.topics.created_ms("T")
    assert first is not None
    assert second == first + 1, "also within one millisecond"
    meta.kill()
    assert meta.topics.created_ms("T") == second
    meta.topics.put(TopicConfig("T", 2, 2))
    assert meta.topics.created_ms("T") == second


def test_a_topic_without_a_stamp_gets_none_by_a_change() -> None:
    meta = MetadataDir()
    meta.topics.put_as_is(TopicConfig("Older", 4, 4))
    meta.topics.put(TopicConfig("Older", 8, 8))
    meta.topics.put(TopicConfig("SELF_TEST_TOPIC", 2, 2))
    assert (meta.topics.created_ms("Older"), meta.topics.created_ms("SELF_TEST_TOPIC")) == (None, None)


def test_a_copy_has_its_masters_stamps() -> None:
    master, copy = MetadataDir(), MetadataDir()
    copy.clock.advance(5_000)
    for name in ("T", "U"):
        master.topics.put(TopicConfig(name, 4, 4))
    finish(copy.topics.mirror(dict(master.topics.all()), {}, master.topics.data_version))
    assert copy.topics.created_ms("T") == master.topics.created_ms("T")
    # Made again between two copies, with the same settings.
    master.topics.delete("T")
    master.topics.put(TopicConfig("T", 4, 4))
    finish(copy.topics.mirror(dict(master.topics.all()), {}, master.topics.data_version))
    assert copy.topics.created_ms("T") == master.topics.created_ms("T")
    put, _ = master.topics.change_kinds
    copy.topics.follow(put, TopicConfig("T", 4, 4, created_ms=77).to_wire())
    copy.topics.follow(put, TopicConfig("New", 4, 4).to_wire())
    copy.kill()
    assert (copy.topics.created_ms("T"), copy.topics.created_ms("New")) == (77, None)
