"""The command ``broker restore``: what it puts right, and what it tells its user to set."""

import pytest

from skylark.broker.commands.restore import lower_offsets, restore_to
from skylark.broker.meta.metadata import Metadata
from skylark.broker.options import BrokerOptions
from skylark.broker.store.backup.manifest import Origin, refuse_unfinished
from skylark.broker.store.backup.taking import StoreBackup, files_now
from skylark.mqcommon.clock import SystemClock
from skylark.remoting.protocol.requests.topics import TopicQueueMappingDetail
from tests.broker.store.support import open_store, put
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

CONFIG = "/store/config"


def metadata_of(fs: MemoryFiles, directory: str = CONFIG) -> Metadata:
    metadata = Metadata(fs, directory, SystemClock(), BrokerOptions())
    metadata.open()
    return metadata


def backed_up(fs: MemoryFiles, mode: str = "plain", others: int = 0) -> None:
    """A store whose group g is at 7 of 2 messages of t, as a slave's table may say; and messages of another topic."""
    store, metadata = open_store(fs, ManualClock(1_000)), metadata_of(fs)
    for number in range(others):
        put(store, "other", 0, b"%d" % number)
    for number in range(2):
        put(store, "t", 0, b"%d" % number)
        put(store, "static", 0, b"%d" % number)
    metadata.topics.static.put(TopicQueueMappingDetail("static", bname="broker-a", total_queues=1))
    for group, topic, offset in (("g", "t", 7), ("h", "t", 1), ("g", "static", 700), ("g", "none", 5)):
        metadata.consumer_offsets.commit_now(group, topic, 0, offset)
    backup = StoreBackup(fs, store, "b")
    backup.begin()
    store.checkpoint(with_ends=True)
    backup.cut()
    backup.link_log(100, 0)
    for path, limit in metadata.journal.files_to(metadata.journal.position):
        backup.link(path, limit)
    backup.link_queues(map(files_now, store.queues))
    store.flush()
    backup.finish(Origin("broker-a", "C", "slave", mode, "1"), 1_000)
    metadata.journal.close()
    store.close()


def test_no_group_is_past_the_end_of_its_queue_afterwards() -> None:
    fs = MemoryFiles()
    backed_up(fs)
    assert restore_to(fs, "/store/backup/b", "/new")
    offsets = metadata_of(fs, "/new/config").consumer_offsets
    assert offsets.queues_of("g", "t") == {0: 2}
    assert offsets.queues_of("h", "t") == {0: 1}
    # Of queues that are not here, or that go through several brokers, the end is not known.
    assert offsets.queues_of("g", "static") == {0: 700}
    assert offsets.queues_of("g", "none") == {0: 5}
    store = open_store(fs)
    assert lower_offsets(fs, "/store", store) == 1
    assert lower_offsets(fs, "/store", store) == 0


def test_the_last_lines_say_what_to_set(capsys: pytest.CaptureFixture[str]) -> None:
    fs = MemoryFiles()
    backed_up(fs, "Controller")
    assert restore_to(fs, "/store/backup/b", "/new", checks=False)
    out = capsys.readouterr().out
    assert "backup of broker-a (slave, cluster C)" in out
    assert "past the end of their queues, and are at the end now: 1\n" in out
    assert "brokerName=broker-a storePathRootDir=/new mappedFileSizeCommitLog=4096" in out
    assert "hours old: set fileReservedTime higher than that" in out
    assert "the broker was in Controller mode: see docs/operate/backup.md" in out
    assert "no damage" not in out, "nothing was read"


def test_damage_of_the_backup_is_told_with_the_way_on(capsys: pytest.CaptureFixture[str]) -> None:
    fs = MemoryFiles()
    backed_up(fs, others=100)
    # In the body of the first message: this file was linked, so nobody has read it.
    fs.flip(f"/store/backup/b/commitlog/{0:020d}", 88)
    assert not restore_to(fs, "/store/backup/b", "/new")
    out = capsys.readouterr().out
    assert "1 damaged place" in out and "broker verifyStore --repair /new" in out
    refuse_unfinished(fs, "/new")
