"""Entries that are damaged are mended from other members, beside all else that the event loop does."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from skylark.broker.replication.dledger.entry_file import HEAD_SLOTS, SLOT_BYTES
from skylark.broker.replication.dledger.mending import Mending
from skylark.mqcommon.raft.messages import EMPTY, AppendRequest, RaftEntry
from tests.broker.replication.dledger.test_log_disk import Member
from tests.support.memory_files import MemoryFiles


async def nobody_steps_aside() -> None:
    raise AssertionError("all entries are mended")


async def test_other_tasks_run_while_many_entries_without_bytes_in_the_log_are_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = tuple(RaftEntry(number, 1, EMPTY, b"") for number in range(1, 41))
    damaged, other = [await Member(MemoryFiles()).start() for _ in range(2)]
    for member in (damaged, other):
        assert await member.take(AppendRequest("n1", "n0", 1, 0, 0, entries, 0))
    for number in range(5, 31):
        damaged.fs.flip(damaged.disk.index.files[0].path, (HEAD_SLOTS + number - 1) * SLOT_BYTES)
    client: Any = SimpleNamespace()
    mending = Mending("g", damaged.disk, client, lambda: {"n1": ""}, nobody_steps_aside)
    monkeypatch.setattr(mending, "_ask", lambda addr, index: other.disk.whole(index))
    turns, turns_at, damage_of = 0, list[int](), damaged.disk.damage_of

    async def noted(index: int) -> str:
        turns_at.append(turns)
        return await damage_of(index)

    monkeypatch.setattr(damaged.disk, "damage_of", noted)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        assert await mending.mend_all([5]) == ""
        nursery.cancel_scope.cancel()
    # In each turn the two tasks run in any order.
    assert len(turns_at) == 26 and turns_at[-1] - turns_at[0] >= 24
    assert damaged.disk.index.chain == other.disk.index.chain
