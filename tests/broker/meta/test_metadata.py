"""All tables behind one journal."""

import pytest

from broker.meta.journal import Journal
from mqcommon.errors import StoreCorrupt
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.bodies.topic import TopicConfig
from tests.broker.meta.support import DIRECTORY, Room
from tests.support.memory_files import MemoryFiles


def test_a_snapshot_makes_the_same_tables() -> None:
    room = Room()
    for number in range(50):
        room.topics.put(TopicConfig(f"T{number}", number, number))
        room.groups.put(SubscriptionGroupConfig(f"g{number}"))
        for queue_id in range(40):
            room.offsets.commit(f"g{number}", f"T{number}", queue_id, queue_id)
    before = (room.topics.all(), room.groups.all(), room.offsets.table())
    compaction = room.journal.begin_compaction()
    compaction.write(room.metadata.state())
    room.journal.end_compaction(compaction)
    assert room.fs.listdir(DIRECTORY) == ["metadata.journal.1", "metadata.snapshot.1"]
    room.power_loss()
    assert (room.topics.all(), room.groups.all(), room.offsets.table()) == before


def test_the_report_says_whether_there_was_any_change() -> None:
    room = Room()
    assert room.report.journal.fresh
    room.kill()
    assert room.report.journal.fresh, "nothing was changed yet"
    room.topics.put(TopicConfig("T"))
    room.kill()
    assert not room.report.journal.fresh


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
        Room(fs=fs)
