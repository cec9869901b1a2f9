"""All tables behind one journal."""

import pytest

from broker.meta.journal import Journal
from mqcommon.errors import StoreCorrupt
from remoting.protocol.requests.groups import SubscriptionGroupConfig
from remoting.protocol.requests.topics import TopicConfig
from tests.broker.meta.support import DIRECTORY, MetadataDir
from tests.support.memory_files import MemoryFiles


def test_a_snapshot_makes_the_same_tables() -> None:
    meta = MetadataDir()
    for number in range(50):
        meta.topics.put(TopicConfig(f"T{number}", number, number))
        meta.groups.put(SubscriptionGroupConfig(f"g{number}"))
        for queue_id in range(40):
            meta.offsets.commit(f"g{number}", f"T{number}", queue_id, queue_id)
    before = (meta.topics.all(), meta.groups.all(), meta.offsets.table())
    compaction = meta.journal.begin_compaction()
    compaction.write(meta.metadata.state())
    meta.journal.end_compaction(compaction)
    assert meta.fs.listdir(DIRECTORY) == ["metadata.journal.1", "metadata.snapshot.1"]
    meta.power_loss()
    assert (meta.topics.all(), meta.groups.all(), meta.offsets.table()) == before


def test_the_report_says_whether_there_was_any_change() -> None:
    meta = MetadataDir()
    assert meta.report.journal.fresh
    meta.kill()
    assert meta.report.journal.fresh, "nothing was changed yet"
    meta.topics.put(TopicConfig("T"))
    meta.kill()
    assert not meta.report.journal.fresh


@pytest.mark.parametrize(
    ("kind", "payload"),
    [("users", {}), ("topic", 7), ("group", None), ("offsets", {"T@g": 1}), ("topic", {"perm": "many"})],
)
def test_a_record_of_another_version_stops_with_its_place(kind: str, payload: object) -> None:
    fs = MemoryFiles()
    journal = Journal(fs, DIRECTORY)
    journal.replay(lambda kind, payload: None)
    journal.append(kind, payload)
    with pytest.raises(StoreCorrupt, match=rf"metadata\.journal\.0 is damaged at offset 24: the record '{kind}'"):
        MetadataDir(fs=fs)
