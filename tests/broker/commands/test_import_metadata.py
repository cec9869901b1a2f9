"""``broker importMetadata``: what a Java broker wrote in between, in place of what was there, whole or not at all."""

from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner, Result

from broker.cli import main
from broker.commands.import_metadata import import_files
from mqcommon.errors import StoreCorrupt, UserError
from remoting.protocol.bodies.topic import TopicConfig
from tests.broker.meta.support import DIRECTORY, Room
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles


def run(store: Path) -> Result:
    return CliRunner().invoke(main, ["importMetadata", str(store)])


def stopped_room(**files: str) -> Room:
    """A room that knows topic Ours and an offset, stopped, with files that a Java broker wrote since."""
    room = Room()
    room.topics.put(TopicConfig("Ours"))
    room.offsets.commit("g", "Ours", 0, 3)
    room.offsets.append_changed(room.offsets.take_changed())
    room.journal.close()
    for name, text in files.items():
        room.fs.overwrite(f"{DIRECTORY}/{name}.json", text.encode())
    return room


THEIRS = {
    "topics": '{"dataVersion":{"counter":9},"topicConfigTable":{"Theirs":{"topicName":"Theirs","perm":4}}}',
    "consumerOffset": '{"offsetTable":{"Theirs@g":{0:7,1:8}}}',
}


def test_the_files_take_the_place_of_what_was_there() -> None:
    room = stopped_room(**THEIRS)
    summary, warnings = import_files(room.fs, room.clock, "/store")
    assert summary == "1 topics, 0 groups, 2 consumer offsets, 0 delay offsets"
    assert warnings == []
    for _ in range(2):
        room.power_loss()
        assert room.topics.get("Ours") is None
        assert room.topics.get("Theirs") == TopicConfig("Theirs", perm=4)
        assert room.offsets.table() == {"Theirs@g": {0: 7, 1: 8}}
        assert room.report.warnings == []
        assert room.topics.data_version.counter == 10


def test_power_loss_on_the_way_leaves_the_one_or_the_other() -> None:
    class PowerLoss(Exception):
        pass

    crashes = 0
    for crash_at in range(1, 200):
        fs = stopped_room(**THEIRS).fs
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
            after = Room(fs=fs.crash(Random(seed)))
            ours, theirs = (after.topics.get(name) is not None for name in ("Ours", "Theirs"))
            assert ours is not theirs
            assert list(after.offsets.table()) == ["Ours@g" if ours else "Theirs@g"]
    assert 20 < crashes < 199


def test_a_broken_file_changes_nothing() -> None:
    room = stopped_room(topics='{"topicConfigTable":', consumerOffset=THEIRS["consumerOffset"])
    with pytest.raises(StoreCorrupt, match=r"topics\.json"):
        import_files(room.fs, room.clock, "/store")
    room.kill()
    assert room.topics.get("Ours") is not None
    assert room.offsets.table() == {"Ours@g": {0: 3}}


def test_without_files_there_is_nothing_to_import() -> None:
    room = stopped_room()
    with pytest.raises(UserError, match="nothing to import"):
        import_files(room.fs, room.clock, "/store")


def test_the_command(tmp_path: Path) -> None:
    store = tmp_path / "store"
    room = stopped_room(**THEIRS)
    for path in room.fs.paths():
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path[1:]).write_bytes(room.fs.read(path))
    (store / "config" / "consumerFilter.json").write_text('{"filterDataByTopic":{"T":{}}}', encoding="utf-8")
    result = run(store)
    assert (result.exit_code, result.stdout) == (0, "import 1 topics, 0 groups, 2 consumer offsets, 0 delay offsets\n")
    assert result.stderr.startswith(f"broker: {store}/config/consumerFilter.json is not imported")
    nowhere = run(tmp_path / "nowhere")
    assert nowhere.exit_code == 1
    assert len(nowhere.stderr.splitlines()) == 1
