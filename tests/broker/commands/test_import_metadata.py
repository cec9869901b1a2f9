"""``broker importMetadata``: what a Java broker wrote in between, in place of what was there, whole or not at all."""

from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner, Result

from broker.cli import main
from broker.commands.import_metadata import import_files
from mqcommon.errors import StoreCorrupt, UserError
from remoting.protocol.requests.topics import TopicConfig
from tests.broker.meta.support import DIRECTORY, MetadataDir
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles


def run(store: Path) -> Result:
    return CliRunner().invoke(main, ["importMetadata", str(store)])


def stopped(**files: str) -> MetadataDir:
    """Metadata of a stopped broker, with topic Ours and an offset, and files that a Java broker wrote later."""
    meta = MetadataDir()
    meta.topics.put(TopicConfig("Ours"))
    meta.offsets.commit("g", "Ours", 0, 3)
    meta.offsets.append_changed(meta.offsets.take_changed())
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


def test_the_command(tmp_path: Path) -> None:
    store = tmp_path / "store"
    meta = stopped(**THEIRS)
    for path in meta.fs.paths():
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path[1:]).write_bytes(meta.fs.read(path))
    (store / "config" / "topicQueueMapping.json").write_text('{"topicQueueMappingInfoMap":{"T":{}}}', encoding="utf-8")
    result = run(store)
    assert (result.exit_code, result.stdout) == (0, "import 1 topics, 0 groups, 2 consumer offsets, 0 delay offsets\n")
    assert result.stderr.startswith(f"broker: {store}/config/topicQueueMapping.json is not imported")
    nowhere = run(tmp_path / "nowhere")
    assert nowhere.exit_code == 1
    assert len(nowhere.stderr.splitlines()) == 1
