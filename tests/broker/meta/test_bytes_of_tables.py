"""What the tables write, pinned: a store of any earlier Skylark opens, and an earlier one opens ours."""

from hashlib import sha256

from skylark.broker.meta.journal_format import scan
from skylark.broker.meta.metadata import Metadata
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.offsets import DelayOffsetTable
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.meta.support import DIRECTORY, MetadataDir
from tests.broker.meta.test_consumer_offsets import flush

JOURNAL, SNAPSHOT = f"{DIRECTORY}/metadata.journal.0", f"{DIRECTORY}/metadata.snapshot.1"


def changed() -> MetadataDir:
    """Every kind of record, by every way to write it."""
    meta = MetadataDir()
    topics, groups, offsets = meta.topics, meta.groups, meta.offsets
    for name in ("A", "B", "C", "DefaultCluster"):
        topics.put(TopicConfig(name, 3, 5, 4, "MULTI_TAG", 2, True, {"message.type": "FIFO"}))
        groups.put(SubscriptionGroupConfig(f"g{name}", retry_max_times=3))
        offsets.commit(f"g{name}", name, 1, 7)
    topics.create_on_send("D", "TBW102", 4)
    groups.get_or_create("gD")
    flush(meta)
    for name in ("B", "TBW102", "unknown"):
        topics.delete(name)
    for name in ("gB", "TOOLS_CONSUMER", "unknown"):
        groups.delete(name)
    finish(offsets.remove_topic("B"))
    finish(offsets.remove_group("gDefaultCluster"))
    finish(topics.mirror({"A": TopicConfig("A"), "E": TopicConfig("E")}, {}, DataVersion(1, 2, 3)))
    finish(groups.mirror({"gE": SubscriptionGroupConfig("gE")}, {"gE": {"A": 1}}, DataVersion(4, 5, 6)))
    offsets.mirror({"A@gA": {0: 9}, "E@gE": {0: 1, 3: 4}}, is_whole=True)
    finish(offsets.keep_only(["A@gA", "E@gE"]))
    flush(meta)
    offsets.adopt_version(DataVersion(7, 8, 9))
    meta.metadata.delay_offsets.put(DelayOffsetTable({1: 5, 18: 7}, DataVersion(0, 9, 3)))
    meta.metadata.delay_offsets.advance(DelayOffsetTable({1: 6}))
    meta.fs.overwrite(f"{DIRECTORY}/topics.json", b"{}")
    meta.metadata.json_files.remember()
    meta.topics.put(TopicConfig("F"))
    return meta


# Kinds in order, so that a failure shows what is different, and the digest of the file. Topics have creation stamps,
# which earlier versions ignore.
JOURNALLED = (
    "topic group topic group topic group topic group topic group offsets topic-gone group-gone offsets-gone "
    "offsets-gone topic-gone topic-gone topic topic topics-version group-gone group-gone group-gone group-gone group "
    "groups-forbidden groups-version offsets-gone offsets-gone offsets offsets-version delay-offsets delay-offsets "
    "json-files topic",
    "c2f8fdfff54332e4f5e583b191655045c0d45204040eedecaedf2cfecb3ba4fe",
)
SNAPSHOTTED = (
    "topic topic topic topic topics-version group groups-version groups-forbidden offsets offsets-version "
    "delay-offsets json-files end",
    "5b8ae9edefed9f414a623320963b4967e89ffe323bc9a92271fd258ac3923203",
)


def written(meta: MetadataDir, number: int, path: str) -> tuple[str, str]:
    data = meta.fs.read(path)
    return " ".join(record.kind for record in scan(data, number).records), sha256(data).hexdigest()


def test_the_bytes_of_journal_and_snapshot_stay_as_they_were() -> None:
    meta = changed()
    assert written(meta, 0, JOURNAL) == JOURNALLED
    meta.journal.replace(meta.metadata.state())
    assert written(meta, 1, SNAPSHOT) == SNAPSHOTTED


def test_journal_and_snapshot_of_the_same_tables_are_read_alike() -> None:
    meta = changed()
    from_journal = Metadata(meta.fs.killed(), DIRECTORY, meta.clock, meta.options)
    from_journal.recover()
    meta.journal.replace(from_journal.state())
    from_snapshot = Metadata(meta.fs.killed(), DIRECTORY, meta.clock, meta.options)
    from_snapshot.recover()
    assert list(from_snapshot.state()) == list(from_journal.state())
    assert from_snapshot.topics.all() == from_journal.topics.all()
    assert from_snapshot.groups.forbidden == {"gE": {"A": 1}}
    assert from_snapshot.consumer_offsets.table() == {"A@gA": {0: 9}, "E@gE": {0: 1, 3: 4}}
