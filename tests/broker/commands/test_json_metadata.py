"""``broker exportMetadata`` and ``importMetadata``: to RocketMQ's files and back, whole or not at all."""

import json
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner, Result

from skylark.broker.cli import main
from skylark.broker.commands.json_metadata import export, hand_over, import_files
from skylark.broker.meta import json_files
from skylark.broker.meta.metadata import Metadata, MetadataReport
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.errors import StoreCorrupt, UserError
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.meta.support import DIRECTORY, MetadataDir
from tests.broker.store.support import SMALL, open_store, put
from tests.support.clock import ManualClock
from tests.support.golden_store import unpack
from tests.support.memory_files import MemoryFiles

# A broker writes the other file with the first mode.
# Those that a broker writes at any rate.
NAMES = [name for name in json_files.NAMES if name not in (json_files.REQUEST_MODES, json_files.STATIC_TOPICS)]


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
    metadata.consumer_offsets.append_changed(metadata.consumer_offsets.pop_changed())
    metadata.journal.close()
    assert run(str(store)).exit_code == 0
    topics = json.loads((store / "config" / "topics.json").read_bytes())
    known = json.loads(before["topics.json"])
    # The creation stamp is Skylark's own, and Java ignores it. Topics that came from Java have none.
    new = topics["topicConfigTable"].pop("New")
    assert new.pop("createdMs") > 0
    assert (topics["topicConfigTable"], new) == (known["topicConfigTable"], TopicConfig("New", 2, 2).to_wire())
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
    meta.offsets.append_changed(meta.offsets.pop_changed())
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


def test_queue_entries_that_find_no_room_are_one_line_that_says_what_to_do() -> None:
    meta = MetadataDir()
    meta.topics.put(TopicConfig("T", 1, 1))
    meta.journal.close()
    store = open_store(meta.fs)
    put(store, "T", 0, b"body")
    store.log.flush()
    meta.kill()
    meta.journal.close()
    meta.fs.capacity = meta.fs.used()
    with pytest.raises(UserError, match=r"^queue entries cannot be written: .*; make room and run this again$"):
        hand_over(meta.fs, meta.clock, SMALL, 1_000, lambda line: None)


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


def run_import(store: Path) -> Result:
    return CliRunner().invoke(main, ["importMetadata", str(store)])


def stopped(**files: str) -> MetadataDir:
    """Metadata of a stopped broker, with topic Ours and an offset, and files that a Java broker wrote later."""
    meta = MetadataDir()
    meta.topics.put(TopicConfig("Ours"))
    meta.offsets.commit("g", "Ours", 0, 3)
    meta.offsets.append_changed(meta.offsets.pop_changed())
    meta.journal.close()
    for name, text in files.items():
        meta.fs.overwrite(f"{DIRECTORY}/{name}.json", text.encode())
    return meta


THEIRS = {
    "topics": '{"dataVersion":{"counter":9},"topicConfigTable":{"Theirs":{"topicName":"Theirs","perm":4}}}',
    "consumerOffset": '{"offsetTable":{"Theirs@g":{0:7,1:8}}}',
}


def test_the_files_take_the_place_of_what_was_there() -> None:
    meta = stopped(**THEIRS)
    summary, warnings = import_files(meta.fs, meta.clock, "/store")
    assert summary == "1 topics, 0 groups, 2 consumer offsets, 0 delay offsets"
    assert warnings == []
    for _ in range(2):
        meta.power_loss()
        assert meta.topics.get("Ours") is None
        assert meta.topics.get("Theirs") == TopicConfig("Theirs", perm=4)
        assert meta.offsets.table() == {"Theirs@g": {0: 7, 1: 8}}
        assert meta.report.warnings == []
        assert meta.topics.data_version.counter == 10


def test_power_loss_on_the_way_leaves_the_one_or_the_other() -> None:
    class PowerLoss(Exception):
        pass

    crashes = 0
    for crash_at in range(1, 200):
        fs = stopped(**THEIRS).fs
        fs.calls.clear()

        def before_call(operation: str, path: str, fs: MemoryFiles = fs, crash_at: int = crash_at) -> None:
            if fs.calls.total() == crash_at:
                raise PowerLoss

        fs.before_call = before_call
        try:
            import_files(fs, ManualClock(), "/store")
        except PowerLoss:
            crashes += 1
        else:
            break
        for seed in range(4):
            after = MetadataDir(fs=fs.crash(Random(seed)))
            ours, theirs = (after.topics.get(name) is not None for name in ("Ours", "Theirs"))
            assert ours is not theirs
            assert list(after.offsets.table()) == ["Ours@g" if ours else "Theirs@g"]
    assert 20 < crashes < 199


def test_a_broken_file_changes_nothing() -> None:
    meta = stopped(topics='{"topicConfigTable":', consumerOffset=THEIRS["consumerOffset"])
    with pytest.raises(StoreCorrupt, match=r"topics\.json"):
        import_files(meta.fs, meta.clock, "/store")
    meta.kill()
    assert meta.topics.get("Ours") is not None
    assert meta.offsets.table() == {"Ours@g": {0: 3}}


def test_without_files_there_is_nothing_to_import() -> None:
    meta = stopped()
    with pytest.raises(UserError, match="nothing to import"):
        import_files(meta.fs, meta.clock, "/store")


def test_the_import_command(tmp_path: Path) -> None:
    store = tmp_path / "store"
    meta = stopped(**THEIRS)
    for path in meta.fs.paths():
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path[1:]).write_bytes(meta.fs.read(path))
    (store / "config" / "consumerOrderInfo.json").write_text('{"table":{"T@g":{0:{}}}}', encoding="utf-8")
    result = run_import(store)
    assert (result.exit_code, result.stdout) == (0, "import 1 topics, 0 groups, 2 consumer offsets, 0 delay offsets\n")
    assert result.stderr.startswith(f"broker: {store}/config/consumerOrderInfo.json is not imported")
    nowhere = run_import(tmp_path / "nowhere")
    assert nowhere.exit_code == 1
    assert len(nowhere.stderr.splitlines()) == 1
