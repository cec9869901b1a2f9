"""``broker exportMetadata``: back to RocketMQ's files, from a stopped broker only."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker.cli import main
from broker.commands.export_metadata import export
from broker.meta import json_files
from broker.meta.metadata import Metadata, MetadataReport
from broker.options import BrokerOptions
from mqcommon.disk.files import OsFiles
from mqcommon.errors import UserError
from remoting.protocol.requests.groups import SubscriptionGroupConfig
from remoting.protocol.requests.topics import TopicConfig
from tests.broker.meta.support import DIRECTORY, MetadataDir
from tests.support.clock import ManualClock
from tests.support.golden_store import unpack
from tests.support.memory_files import MemoryFiles

# A broker writes the other file with the first mode.
NAMES = [name for name in json_files.NAMES if name != json_files.REQUEST_MODES]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["exportMetadata", *arguments])


def opened(store: Path) -> tuple[Metadata, MetadataReport]:
    metadata = Metadata(OsFiles(), f"{store}/config", ManualClock(), BrokerOptions(broker_name="broker-g"))
    return metadata, metadata.open()


def test_a_java_brokers_directory_is_given_back_as_it_was_with_what_changed(tmp_path: Path) -> None:
    store = unpack("5.3.3", tmp_path)
    before = {name: (store / "config" / name).read_bytes() for name in NAMES}
    metadata, _ = opened(store)
    metadata.journal.close()
    result = run(str(store))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [f"export {store}/config/{name} success" for name in NAMES]
    assert {name: (store / "config" / name).read_bytes() for name in NAMES} == before

    metadata, report = opened(store)
    assert report.warnings == [], "our own export is nobody else's change"
    metadata.topics.put(TopicConfig("New", 2, 2))
    metadata.groups.put(SubscriptionGroupConfig("new_group", retry_max_times=3))
    metadata.consumer_offsets.commit("golden_group", "GoldenA", 1, 16)
    metadata.consumer_offsets.append_changed(metadata.consumer_offsets.take_changed())
    metadata.journal.close()
    assert run(str(store)).exit_code == 0
    topics = json.loads((store / "config" / "topics.json").read_bytes())
    known = json.loads(before["topics.json"])
    assert topics["topicConfigTable"] == {**known["topicConfigTable"], "New": TopicConfig("New", 2, 2).to_wire()}
    assert topics["dataVersion"]["counter"] == known["dataVersion"]["counter"] + 1
    groups = json.loads((store / "config" / "subscriptionGroup.json").read_bytes())
    assert groups["subscriptionGroupTable"]["new_group"]["retryMaxTimes"] == 3
    assert '"GoldenA@golden_group":{0:13,2:13,3:14,1:16\n' in (store / "config" / "consumerOffset.json").read_text()
    assert {name: (store / "config" / f"{name}.bak").read_bytes() for name in NAMES} == before
    assert opened(store)[1].warnings == []


def test_what_is_exported_elsewhere_can_be_taken_over_there(tmp_path: Path) -> None:
    meta = MetadataDir()
    meta.topics.put(TopicConfig("T", 3, 3, attributes={"message.type": "FIFO"}))
    meta.groups.put(SubscriptionGroupConfig("g", consume_timeout_minute=3))
    meta.offsets.commit("g", "T", 2, 7)
    meta.offsets.append_changed(meta.offsets.take_changed())
    meta.journal.close()
    meta.fs.mkdirs("/other")
    export(meta.fs, meta.clock, "/store", "/other/store/config")
    other = MemoryFiles()
    for name in NAMES:
        other.overwrite(f"{DIRECTORY}/{name}", meta.fs.read(f"/other/store/config/{name}"))
    there = MetadataDir(fs=other)
    assert there.topics.get("T") == meta.topics.get("T")
    assert there.groups.get("g") == meta.groups.get("g")
    assert there.offsets.table() == {"T@g": {2: 7}}
    assert [name for name in meta.fs.listdir(DIRECTORY) if name.endswith(".json")] == []


def test_a_running_broker_is_left_alone() -> None:
    meta = MetadataDir()
    meta.topics.put(TopicConfig("T"))
    lock = meta.fs.lock("/store/lock")
    with pytest.raises(UserError, match="is open in a broker: stop it first"):
        export(meta.fs, meta.clock, "/store")
    lock.close()
    assert export(meta.fs, meta.clock, "/store") == [f"{DIRECTORY}/{name}" for name in NAMES]


def test_java_files_that_were_never_taken_over_are_not_overwritten(tmp_path: Path) -> None:
    store = unpack("4.9.8", tmp_path)
    result = run(str(store))
    assert (result.exit_code, result.stderr) == (
        1,
        f"broker: {store}/config holds no metadata of Skylark's: give the directory that storePathRootDir names\n",
    )
    MetadataDir(fs=(fs := MemoryFiles())).journal.close()
    fs.overwrite(f"{DIRECTORY}/topics.json", b'{"topicConfigTable":{"T":{"topicName":"T"}}}')
    with pytest.raises(UserError, match="nothing to export"):
        export(fs, ManualClock(), "/store")


def test_a_directory_that_may_not_be_written_is_one_line(tmp_path: Path) -> None:
    store = unpack("5.3.3", tmp_path)
    opened(store)[0].journal.close()
    (tmp_path / "file").touch()
    result = run(str(store), "--to", str(tmp_path / "file" / "sub"))
    assert result.exit_code == 1
    assert result.stderr == f"broker: {tmp_path}/file: Not a directory\n"
