"""The checkpoint's flush mark: how far the log is on disk, never further than was flushed."""

from pathlib import Path
from random import Random

import pytest

from skylark.broker.store.checkpoint import CHECKPOINT_BYTES, CheckpointState, StoreCheckpoint, read_checkpoint
from tests.support.memory_files import MemoryFiles
from tests.support.rot import Ways, cut_anywhere, flipped_anywhere, zeroed_anywhere

PATH = "/store/checkpoint"
TIMES = (1, 2, 3)


def opened(fs: MemoryFiles | None = None) -> tuple[MemoryFiles, StoreCheckpoint]:
    fs = fs or MemoryFiles()
    fs.mkdirs("/store")
    return fs, StoreCheckpoint(fs, PATH)


def state(fs: MemoryFiles) -> CheckpointState:
    return read_checkpoint(fs, PATH)


def test_the_mark_rises_with_each_flush_and_survives_a_kill_without_a_sync() -> None:
    fs, checkpoint = opened()
    checkpoint.write(100, 7, TIMES)
    syncs = fs.calls["sync"]
    for flushed, known in ((150, 150), (180, 180), (170, 180)):
        checkpoint.note_flushed(flushed)
        assert state(fs.killed()).flushed_to == state(fs.killed()).log_durable_to == known
    assert fs.calls["sync"] == syncs
    checkpoint.write(160, 7, TIMES)  # a checkpoint covers what was flushed when it began
    assert (state(fs).log_offset, state(fs).flushed_to) == (160, 180)
    assert StoreCheckpoint(fs, PATH).state == state(fs) == checkpoint.state


def test_a_cut_of_the_log_lowers_the_mark() -> None:
    fs, checkpoint = opened()
    checkpoint.write(100, 7, TIMES)
    checkpoint.note_flushed(190)
    checkpoint.write(120, 7, TIMES, is_cut=True)
    assert state(fs).log_durable_to == 120
    checkpoint.note_flushed(125)
    assert state(fs).log_durable_to == 125


def test_a_mark_of_before_an_older_version_or_rocketmq_wrote_the_file_does_not_count() -> None:
    fs, checkpoint = opened()
    checkpoint.write(100, 7, TIMES)
    checkpoint.note_flushed(190)
    old = fs.read(PATH)
    checkpoint.write(120, 7, TIMES)
    # An older version writes slots only: this one into the place of the other slot, whose marks stay.
    new = fs.read(PATH)
    slot = 2048 if old[2048:2112] != new[2048:2112] else 3072
    fs.overwrite(PATH, old[:slot] + new[slot : slot + 64] + old[slot + 64 :])
    assert (state(fs).log_offset, state(fs).flushed_to, state(fs).log_durable_to) == (120, None, 120)
    fs.overwrite(PATH, bytes(24) + new[24:])
    assert state(fs).used_by_rocketmq and state(fs).flushed_to is None


def test_a_kill_at_any_byte_that_is_written_leaves_a_mark(tmp_path: Path) -> None:
    fs, checkpoint = opened()
    checkpoint.write(100, 7, TIMES)
    checkpoint.note_flushed(150)
    before = fs.read(PATH)
    for change in (lambda: checkpoint.note_flushed(180), lambda: checkpoint.write(160, 7, TIMES)):
        change()
        after = fs.read(PATH)
        changed = [at for at in range(CHECKPOINT_BYTES) if before[at] != after[at]]
        # In the order in which `write` writes: the mark lies after its slot, and comes first.
        marks_first = sorted(changed, key=lambda at: (at % 1024 < 128, at))
        data = bytearray(before)
        for at in marks_first:
            data[at] = after[at]
            fs.overwrite(PATH, bytes(data))
            assert state(fs).log_durable_to in (150, 180)
        before = after


@pytest.mark.parametrize("seed", range(20))
def test_power_losses_leave_a_mark_that_claims_no_more_than_was_flushed_and_no_less_than_the_checkpoint(
    seed: int,
) -> None:
    random = Random(seed)
    fs, checkpoint = opened()
    checkpoint.write(1, 7, TIMES)
    flushed, synced = 1, 1
    for _ in range(40):
        if random.random() < 0.7:
            flushed += random.randrange(5)
            checkpoint.note_flushed(flushed)
        else:
            checkpoint.write(flushed, 7, TIMES)
            synced = flushed
        after = state(fs.crash(random))
        assert after.flushed_to is not None and synced <= after.log_durable_to <= flushed


@pytest.mark.parametrize("ways", [cut_anywhere, zeroed_anywhere, flipped_anywhere])
def test_damage_makes_the_mark_claim_less_or_nothing(ways: Ways) -> None:
    fs, checkpoint = opened()
    checkpoint.write(100, 7, TIMES)
    checkpoint.write(120, 7, TIMES)
    checkpoint.note_flushed(190)
    for _, data in ways(fs.read(PATH)):
        fs.overwrite(PATH, data)
        assert state(fs).log_durable_to in (0, 100, 120, 190)
