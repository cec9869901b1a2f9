"""All tables behind one journal."""

import pytest

from skylark.broker.meta.journal import Journal
from skylark.mqcommon.errors import StoreCorrupt
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.meta.support import DIRECTORY, MetadataDir
from tests.support.memory_files import MemoryFiles


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
    [("topic", 7), ("group", None), ("offsets", {"T@g": 1}), ("topic", {"perm": "many"})],
)
def test_a_record_of_another_version_stops_with_its_place(kind: str, payload: object) -> None:
    fs = MemoryFiles()
    journal = Journal(fs, DIRECTORY)
    journal.replay(lambda kind, payload: None)
    journal.append(kind, payload)
    with pytest.raises(StoreCorrupt, match=rf"metadata\.journal\.0 is damaged at offset 24: the record '{kind}'"):
        MetadataDir(fs=fs)
