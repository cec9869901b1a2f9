"""The table of docs/dledger.md: a member's files, damaged at each position, and what its next start makes of that.

Outcomes: "repaired" (it has all that it promised), "joins anew" (`LostDisk`: it must not go on as it is), "refused"
(the store is not opened, with the reason). There is no fourth one: an entry that was promised is never missing.
"""

from collections.abc import Iterable
from random import Random

import pytest
import trio

from broker.broker import store_options
from broker.options import BrokerOptions
from broker.replication.dledger import log_disk
from broker.replication.dledger.entry_index import HEAD, EntryIndex
from broker.replication.dledger.log_disk import GroupLog, LogDisk, LostDisk
from broker.store.store import MessageStore
from mqcommon.clock import SystemClock
from mqcommon.errors import StoreCorrupt, StoreError
from tests.broker.replication.dledger.groups import group
from tests.broker.running import SMALL
from tests.support.memory_files import MemoryFiles

ENTRIES, MARK, STATE = (f"/store/dledger/{name}" for name in ("entries/00000000000000000001", "mark", "state"))
LOG = "/store/commitlog/00000000000000000000"
BODIES = [b"%d" % number * 10 for number in range(12)]
OPTIONS = BrokerOptions(**{**SMALL, "mapped_file_size_commit_log": 16 * 1024})


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_disk, "open_index", lambda fs, root: EntryIndex(fs, f"{root}/dledger/entries", 128))


async def nothing() -> None:
    await trio.lowlevel.checkpoint()


async def no_cut(offset: int) -> None:
    raise AssertionError("nothing is cut")


class Started:
    """What a start finds. ``outcome``: see the module."""

    def __init__(self, fs: MemoryFiles) -> None:
        self.entries: list[object] = []
        self.damaged: list[int] = []
        store = MessageStore(fs, store_options(OPTIONS), SystemClock(), b"\0" * 8)
        try:
            store.open(lambda line: None)
        except StoreError as error:
            assert str(error)
            self.outcome = "refused"
            return
        disk = LogDisk(fs, "/store", GroupLog(store.log, nothing, no_cut, False))
        try:
            disk.check()
        except LostDisk as error:
            assert "joins them anew" in str(error)
            self.outcome = "joins anew"
        except StoreCorrupt:
            self.outcome = "refused"
        else:
            self.outcome = "repaired"
            index = disk.index
            self.entries = [index.entry(number) for number in range(index.first, index.last + 1)]
            self.damaged = [number for number in range(index.first, index.last + 1) if trio.run(disk.damage_of, number)]
        disk.close()
        store.close()


async def run_and_kill() -> MemoryFiles:
    async with group("n0", flush_interval_commit_log=1_000_000) as made:
        member = await made.start("n0")
        await (await made.leader()).send("topic", *BODIES)
        return member.kill()


async def run_and_stop() -> MemoryFiles:
    async with group("n0") as made:
        member = await made.start("n0")
        await (await made.leader()).send("topic", *BODIES)
    return member.fs.killed()


@pytest.fixture
def killed() -> MemoryFiles:
    """The disk of a member that was killed before a flush of what it had promised."""
    return trio.run(run_and_kill)


@pytest.fixture
def stopped() -> MemoryFiles:
    """The disk of a member that was stopped."""
    return trio.run(run_and_stop)


def used(fs: MemoryFiles, path: str) -> int:
    return len(fs.read(path).rstrip(b"\0"))


def outcomes(fs: MemoryFiles, path: str, positions: Iterable[int]) -> set[str]:
    """Of one bit at each of ``positions``, each on a disk of its own."""
    whole, found = Started(fs.killed()), set()
    assert whole.outcome == "repaired" and len(whole.entries) > len(BODIES)
    for at in positions:
        damaged = fs.killed()
        damaged.flip(path, at, at % 8)
        started = Started(damaged)
        assert started.outcome != "repaired" or started.entries == whole.entries, at
        if path != LOG:
            assert started.damaged == [], at
        found.add(started.outcome if not started.damaged else "repaired when a member needs it")
    return found


def check_table(fs: MemoryFiles) -> None:
    """What is the same after a kill and after a clean stop."""
    assert outcomes(fs, ENTRIES, range(0, HEAD.size, 3)) == {"joins anew"}
    # "repaired": the padding after slots, which means nothing.
    assert outcomes(fs, ENTRIES, range(64, used(fs, ENTRIES), 23)) == {"joins anew", "repaired"}
    assert outcomes(fs, MARK, [*range(32), *range(4096, 4096 + 32)]) == {"repaired"}
    assert outcomes(fs, STATE, range(0, fs.size(STATE), 5)) == {"joins anew"}
    for path, sizes in ((ENTRIES, (0, 64, 500)), (MARK, (0, 31)), (STATE, (0, 3, 50)), (MARK, (5_000,))):
        for size in (None, *sizes):
            damaged = fs.killed()
            if size is None:
                damaged.remove(path)
            else:
                damaged.overwrite(path, fs.read(path)[:size])
            assert Started(damaged).outcome == ("repaired" if size == 5_000 else "joins anew"), (path, size)
    both = fs.killed()
    both.flip(MARK, 7)
    both.flip(MARK, 4096 + 7)
    assert Started(both).outcome == "joins anew"


def test_the_table_after_a_kill(killed: MemoryFiles) -> None:
    check_table(killed)
    # What was stored since the last checkpoint is read again.
    assert outcomes(killed, LOG, range(0, used(killed, LOG), 127)) <= {"joins anew", "refused"}


def test_the_table_after_a_clean_stop(stopped: MemoryFiles) -> None:
    check_table(stopped)
    assert outcomes(stopped, LOG, range(0, used(stopped, LOG), 127)) <= {"repaired when a member needs it", "refused"}


def test_a_power_loss_is_told_from_damage_up_to_the_last_flush(stopped: MemoryFiles, killed: MemoryFiles) -> None:
    whole = Started(stopped.killed())
    for seed in range(10):
        left = stopped.crash(Random(seed))
        assert Started(left.killed()).entries == whole.entries
        left.flip(ENTRIES, 64 + 32 * 5 + seed)
        assert Started(left).outcome == "joins anew"
        # Nothing was flushed: any part may be gone, and is no damage.
        assert Started(killed.crash(Random(seed))).outcome == "repaired"
