"""Every file of a store: a changed bit is found by one round of checks, and undone, and misleads nobody meanwhile."""

from dataclasses import replace
from random import Random
from zlib import crc32

import pytest

from skylark.broker.healing.other_files import CheckedFile
from skylark.broker.store.filter import Filter
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.javahash import java_hash
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.broker.healing.rig import Rig, rig
from tests.broker.store.cleaning import clean
from tests.broker.store.support import SMALL, put, put_inner
from tests.support.amounts import amount
from tests.support.memory_files import MemoryFiles

FEW = replace(SMALL, index_slots=10, index_capacity=13)
RED = Filter(frozenset([java_hash("red")]))
KEYS = [f"key-{number}" for number in range(40)]
BODIES = [key.encode() for key in KEYS]
#: How many places of how many files of each kind are tried.
PLACES, FILES = amount(1, 60), amount(1, 100)
#: The log has its own checks; the lock has no content that counts; a stop removes abort.
LEFT_OUT = ("/store/commitlog/", "/store/lock")


async def filled() -> MemoryFiles:
    fs = MemoryFiles()
    with rig(fs, FEW) as made:
        made.store.queues.use_kinds(lambda topic: topic == "b")
        for number, key in enumerate(KEYS):
            put(made.store, "t", 0, key.encode(), f"KEYS\x01{key}\x02TAGS\x01red\x02".encode())
            put(made.store, "u", 0, b"u", b"")
            if number < 10:
                put_inner(made.store, "b", 0, [(0, b"1", b""), (0, b"2", b"")])
        made.metadata.journal.replace(made.metadata.state())
        made.metadata.topics.put(TopicConfig("t", 4, 4))
        made.store.build_index(10_000)
        log = made.store.log
        block = log.sums.block_at(0)
        log.sums.seal(block, crc32(log.chain.read_file(0, block.size)))
        made.store.checkpoint(with_ends=True)
        await made.round()
    return fs


def used(made: Rig, path: str) -> int:
    """How many bytes of the file count."""
    for file in made.store.index.files:
        if file.file.path == path:
            return file.used_bytes
    for queue in made.store.queues:
        if path.startswith(queue.directory + "/"):
            return min(queue.stored_bytes - int(path.rpartition("/")[2]), queue.segment_bytes)
    return made.fs.size(path)


def answers(made: Rig) -> list[object]:
    """All that a client may ask for; an answer may be refused."""
    found: list[object] = [made.bodies("t"), made.bodies("t", RED), made.bodies("b")]
    for key in KEYS:
        try:
            found.append(made.bodies_with_key("t", key))
        except RequestRefused:
            found.append([key.encode()])
    return [*found, made.metadata.topics.get("t")]


async def test_a_new_store_has_no_problem() -> None:
    with rig(MemoryFiles(), FEW) as made:
        assert await made.round() == []
        put(made.store, "t", 0, b"first")
        assert await made.round() == []
        made.store.checkpoint(with_ends=True)
        assert await made.round() == []


async def test_a_bit_of_each_file() -> None:
    before = await filled()
    with rig(before.killed(), FEW) as made:
        right = answers(made)
        await made.round()
        paths = {path: used(made, path) for path in made.fs.paths() if not path.startswith(LEFT_OUT)}
    random = Random(3)
    kinds: dict[str, list[str]] = {}
    for path in random.sample(sorted(paths), len(paths)):
        kinds.setdefault(path.removeprefix("/store/").rstrip("0123456789."), []).append(path)
    assert set(kinds) == {"abort", "batchconsumequeue/b/0/", "checkpoint", "config/metadata.journal",
                          "config/metadata.snapshot", "consumequeue/t/0/", "consumequeue/u/0/", "index/", "inventory",
                          "queueEnds", "sums/", "sums/derived"}  # fmt: skip
    unseen: list[tuple[str, int]] = []
    for path in [path for of_kind in kinds.values() for path in of_kind[:FILES]]:
        size = paths[path]
        for at in sorted(random.sample(range(size), min(PLACES, size))):
            fs = before.killed()
            with rig(fs, FEW) as made:
                fs.flip(path, at, random.randrange(8))
                assert answers(made) == right, f"{path} at {at}"
                found = await made.round()
                assert all(each.path == path and each.is_mended for each in found) and len(found) <= 1, found
                if not found and fs.exists(path) and fs.read_direct(path, at, 1) != before.read(path)[at : at + 1]:
                    unseen.append((path, at))
                assert answers(made) == right and await made.round() == []
            with rig(fs, FEW) as made:
                assert answers(made) == right and await made.round() == []
    # What nobody reads, and sums, which are written anew before they are checked.
    assert all(path.endswith(("/checkpoint", "/derived")) or is_reserved(path, at) for path, at in unseen), unseen


def is_reserved(path: str, at: int) -> bool:
    return "/batchconsumequeue/" in path and at % 46 >= 42


@pytest.mark.parametrize("at", [0, 10, 24, 60, -30, -1])
@pytest.mark.parametrize("kind", ["journal", "snapshot"])
async def test_metadata_is_written_again_from_the_tables(kind: str, at: int) -> None:
    fs = await filled()
    with rig(fs, FEW) as made:
        (path,) = [each for each in fs.paths() if f"metadata.{kind}." in each]
        fs.flip(path, at % fs.size(path), 2)
        (found,) = await made.round()
        assert found.path == path and found.is_mended and not fs.exists(path)
        made.metadata.topics.put(TopicConfig("new", 2, 2))
        assert await made.round() == []
    with rig(fs.killed(), FEW) as made:
        assert made.metadata.topics.get("t") == TopicConfig("t", 4, 4)
        assert made.metadata.topics.get("new") is not None


async def test_metadata_that_cannot_be_read_is_written_again() -> None:
    fs = await filled()
    with rig(fs, FEW) as made:
        (path,) = [each for each in fs.paths() if "metadata.snapshot." in each]
        fs.make_unreadable(path, 10, 1)
        (found,) = await made.round()
        assert found.is_mended and await made.round() == []


@pytest.mark.parametrize("name", ["queueEnds", "inventory", "abort", "checkpoint"])
async def test_a_small_file_that_is_gone_or_short_is_written_again(name: str) -> None:
    before = await filled()
    for cut in (True, False):
        fs = before.killed()
        with rig(fs, FEW) as made:
            path = f"/store/{name}"
            if name == "checkpoint":
                fs.damage(path, 2048, bytes(100), in_memory=True, on_disk=True)
                fs.damage(path, 3072, bytes(100), in_memory=cut, on_disk=True)
            elif cut:
                fs.overwrite(path, fs.read(path)[:3])
            else:
                fs.remove(path)
            (found,) = await made.round()
            assert found.path == path and found.is_mended and await made.round() == []
        with rig(fs, FEW) as made:
            assert made.bodies("t") == BODIES


async def test_a_file_of_sums_that_is_gone_is_written_again() -> None:
    fs = await filled()
    with rig(fs, FEW) as made:
        path = f"/store/sums/{0:020d}"
        fs.remove(path)
        (found,) = await made.round()
        assert found == CheckedFile(path, 0, "the file is missing", is_mended=True) and fs.exists(path)
        # Sums that no checkpoint has written yet need no file.
        log = made.store.log
        block = log.sums.block_at(log.chain.segment_bytes)
        log.sums.seal(block, crc32(log.chain.read_file(block.start, block.size)))
        assert await made.round() == []


async def test_what_cannot_be_written_again_is_said() -> None:
    fs = await filled()
    with rig(fs, FEW) as made:
        fs.flip("/store/inventory", 5)
        fs.capacity = fs.used()
        (found,) = await made.round()
        fs.capacity = 1 << 40
        assert not fs.exists("/store/inventory") or not found.is_mended
        assert [each.is_mended for each in await made.round()] == [True]


async def test_sums_of_a_log_file_that_is_removed_amid_a_round_are_no_problem() -> None:
    fs = await filled()
    with rig(fs, FEW) as made:
        path = f"/store/sums/{0:020d}"
        assert await made.checks.check_next() is not None and fs.exists(path)
        assert clean(fs, made.store, 1) == 1 and not fs.exists(path)
        assert await made.round() == []
