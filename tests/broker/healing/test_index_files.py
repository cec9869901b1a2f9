"""Damaged files of the index: no query misses a message, and one round of checks finds the damage and mends it."""

from dataclasses import replace

import pytest
import trio

from skylark.broker.healing.index_files import IndexFiles
from skylark.broker.store.index.index_file import ENTRY_BYTES, SLOTS_AT, entries_at, index_file_bytes
from skylark.mqcommon.errors import RequestRefused
from tests.broker.healing.rig import Rig, rig
from tests.broker.store.support import SMALL, put
from tests.support.amounts import share_of
from tests.support.bad_medium import SECTOR_BYTES
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

#: Twelve keys a file.
FEW = replace(SMALL, commitlog_segment_bytes=1024, index_slots=10, index_capacity=13)
KEYS = [f"key-{number}" for number in range(FEW.index_capacity * 2)]
ENTRIES = entries_at(FEW.index_slots)
USED = ENTRIES + FEW.index_capacity * ENTRY_BYTES
#: An index file of whole sectors.
SECTORS = replace(SMALL, index_slots=SECTOR_BYTES * 2 // 4 - 10, index_capacity=SECTOR_BYTES * 5 // ENTRY_BYTES)


@pytest.fixture(params=["one block", "many blocks"], autouse=True)
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many blocks":
        for module in ("sums.growing_sums", "log.residency"):
            monkeypatch.setattr(f"skylark.broker.store.{module}.BLOCK_BYTES", 64)


async def filled() -> MemoryFiles:
    """Two files of the index that are full, and the last one that is not."""
    fs = MemoryFiles()
    with rig(fs, FEW) as made:
        for key in KEYS:
            put(made.store, "t", 0, key.encode(), f"KEYS\x01{key}\x02".encode())
        made.store.build_index(10_000)
        assert len(made.store.index.files) == 3
        await made.round()
    return fs


def files_of(fs: MemoryFiles) -> list[str]:
    return [path for path in fs.paths() if path.startswith("/store/index/")]


def is_misled(made: Rig) -> bool:
    """Whether a query misses its message; a query may be refused."""
    for key in KEYS:
        try:
            if made.bodies_with_key("t", key) != [key.encode()]:
                return True
        except RequestRefused:
            pass
    return False


async def mended(fs: MemoryFiles, path: str, sound: bytes) -> None:
    with rig(fs, FEW) as made:
        assert not is_misled(made)
        found = await made.round()
        assert [each.path for each in found] in ([path], []) and all(each.is_mended for each in found)
        assert not is_misled(made)
        assert await made.round() == []
        assert fs.read_direct(path, 0, len(sound)) == sound == fs.read(path)
        assert all(made.bodies_with_key("t", key) == [key.encode()] for key in KEYS)


async def test_sound_files_have_no_problem_and_get_sums() -> None:
    for remove in (False, True):
        fs = await filled()
        if remove:
            fs.remove("/store/sums/derived")
        with rig(fs, FEW) as made:
            assert await made.round() == []
            for file in made.store.index.files[:-1]:
                last = file.sums.number_at(file.used_bytes - 1)
                assert all(file.sums.sum_of(number).size for number in range(last + 1))


async def test_each_byte_of_a_full_file() -> None:
    before = await filled()
    path = files_of(before)[1]
    sound = before.read(path)
    for at in share_of(range(SLOTS_AT, USED)):
        fs = before.killed()
        if sound[max(at - 3, 0) : at + 3].count(0) == 6:
            continue
        fs.flip(path, at, at % 8)
        await mended(fs, path, sound)


async def test_each_byte_of_the_last_file() -> None:
    before = await filled()
    path = files_of(before)[-1]
    sound = before.read(path)
    with rig(before.killed(), FEW) as made:
        used = made.store.index.files[-1].used_bytes
    for at in share_of([*range(SLOTS_AT, ENTRIES), *range(ENTRIES + ENTRY_BYTES, used)]):
        fs = before.killed()
        with rig(fs, FEW) as made:
            fs.damage(path, at, bytes([sound[at] ^ 1 << at % 8]), in_memory=False, on_disk=True)
            (found,) = await made.round()
            assert found.path == path and found.is_mended and not is_misled(made), at
            assert await made.round() == []
            assert fs.read_direct(path, 0, len(sound)) == sound


async def test_the_last_file_is_made_again_while_it_grows() -> None:
    fs = await filled()
    path = files_of(fs)[-1]
    with rig(fs, FEW) as made:
        file = made.store.index.files[-1]
        fs.flip(path, SLOTS_AT + 5 * 4 + 3, 1)
        fs.flip(path, ENTRIES + 2 * ENTRY_BYTES + 3, 1)
        put(made.store, "t", 0, b"later", b"KEYS\x01later\x02")
        made.store.build_index(10)
        (found,) = await made.round()
        assert found.is_mended and made.store.index.files[-1] is file
        assert made.bodies_with_key("t", "later") == [b"later"] and not is_misled(made)
        put(made.store, "t", 0, b"last", b"KEYS\x01last\x02")
        assert made.bodies_with_key("t", "last") == [b"last"]
        assert await made.round() == []


async def test_a_file_that_was_filled_gets_sums_soon() -> None:
    fs = MemoryFiles()
    with rig(fs, FEW) as made:
        for key in KEYS:
            put(made.store, "t", 0, key.encode(), f"KEYS\x01{key}\x02".encode())
        made.store.build_index(10_000)
        for file in made.store.index.files[:-1]:
            await made.index_files._seal_slots(file)
    path = files_of(fs)[0]
    sound = fs.read(path)
    fs.flip(path, SLOTS_AT + 5 * 4 + 3, 1)
    await mended(fs, path, sound)


async def test_a_query_that_finds_damage_is_refused_until_the_file_is_made_again() -> None:
    fs = await filled()
    path = files_of(fs)[0]
    sound = fs.read(path)
    with rig(fs, FEW) as made:
        fs.flip(path, ENTRIES + 5 * ENTRY_BYTES + 2, 1)
        with pytest.raises(RequestRefused, match="is damaged, and is being made again"):
            is_found = [made.bodies_with_key("t", key) for key in KEYS]
            assert not is_found
        assert await made.index_files._make_again(made.store.index.files[0])
        assert made.bodies_with_key("t", KEYS[4]) == [KEYS[4].encode()]
        assert fs.read(path) == sound
        assert not [name for name in fs.paths() if "building" in name]


async def test_a_file_whose_first_messages_were_removed_is_made_again_from_the_rest() -> None:
    fs = await filled()
    path = files_of(fs)[0]
    with rig(fs, FEW) as made:
        log = made.store.log
        log.chain.retire_before(FEW.commitlog_segment_bytes)
        assert made.store.index.files[0].begin_physical < log.start
        log.chain.remove_retired()
        fs.flip(path, ENTRIES + 10 * ENTRY_BYTES, 1)
        (found,) = await made.round()
        assert found.is_mended
        present = [key for key in KEYS if made.bodies_with_key("t", key)]
        assert present == KEYS[len(KEYS) - len(present) :] and 0 < len(present) < len(KEYS)
        assert await made.round() == []


async def test_damage_that_the_log_cannot_mend_is_said() -> None:
    fs = await filled()
    path = files_of(fs)[0]
    with rig(fs, FEW) as made:
        fs.flip(path, ENTRIES + 10 * ENTRY_BYTES, 1)
        made.store.index.files[0].end_physical += 10**9
        (found,) = await made.round()
        assert not found.is_mended
        with pytest.raises(RequestRefused):
            made.bodies_with_key("t", KEYS[0])


@pytest.mark.parametrize("block_bytes", ["one block"], indirect=True)
async def test_a_sector_that_cannot_be_read_is_written() -> None:
    fs = MemoryFiles()
    with rig(fs, SECTORS) as made:
        for number in range(SECTORS.index_capacity + 10):
            key = f"key-{number}"
            put(made.store, "t", 0, key.encode(), f"KEYS\x01{key}\x02".encode())
        made.store.build_index(10_000)
    path = files_of(fs)[0]
    sound = fs.read(path)
    assert len(sound) == index_file_bytes(SECTORS.index_slots, SECTORS.index_capacity)
    for is_cached in (True, False):
        with rig(fs, SECTORS) as made:
            fs.make_unreadable(path, 3 * SECTOR_BYTES, 10)
            if not is_cached:
                fs.cold.mark(path)
            (found,) = await made.round()
            assert found.is_mended and "cannot be read" in found.problem
            assert await made.round() == [] and fs.read_direct(path, 0, len(sound)) == sound


async def test_a_file_without_sums_whose_memory_cannot_be_written_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fs = await filled()
    fs.remove("/store/sums/derived")
    path = files_of(fs)[0]
    sound = fs.read(path)
    with rig(fs, FEW) as made:
        monkeypatch.setattr(IndexFiles, "_settle_bytes", lambda *_: (None, "the disk has other bytes than memory"))
        fs.damage(path, ENTRIES + 10 * ENTRY_BYTES, b"\xff", on_disk=False)
        found = [each for each in await made.round() if each.path == path]
        assert [each.is_mended for each in found] == [True] and fs.read(path) == sound


async def test_a_leftover_that_cannot_be_removed_does_not_end_the_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: str) -> None:
        raise OSError(f"{path}: read-only file system")

    fs = MemoryFiles()
    fs.overwrite("/store/sums/building/1", b"x")
    with rig(fs, FEW) as made, monkeypatch.context() as patched:
        patched.setattr(fs, "remove", fail)
        async with trio.open_nursery() as nursery:
            await nursery.start(made.index_files.run)
            await until(lambda: "building/1: read-only" in caplog.text, "it is said")
            nursery.cancel_scope.cancel()
