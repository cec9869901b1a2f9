"""Entries of queues wait in memory for the checkpoint: none is forgotten, and not too many wait."""

import pytest
import trio
import trio.testing

from broker.store.checkpoint import CheckpointMark
from broker.store.store import QueueStep
from broker.tasks import flush
from mqcommon.errors import DiskFull
from tests.broker.store.support import bodies, new_store, put
from tests.broker.tasks.test_flush import OPTIONS, Gate, Parts


async def test_a_checkpoint_that_is_cancelled_leaves_its_entries_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = Parts()
    put(parts.store, "t", 0, b"message")
    take = parts.store.take_queues

    with trio.CancelScope() as scope:

        def take_and_stop(mark: CheckpointMark) -> list[QueueStep]:
            scope.cancel()
            return take(mark)

        monkeypatch.setattr(parts.store, "take_queues", take_and_stop)
        await parts.flusher.checkpoint()
    assert scope.cancelled_caught
    monkeypatch.undo()
    assert parts.store.close() == ""
    store = new_store(parts.fs, options=OPTIONS)
    assert store.open().clean
    assert bodies(store, "t", 0) == [b"message"]


async def test_sends_are_refused_while_too_many_entries_wait(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(flush, "MAX_ENTRIES_WAITING", 10)
    parts = Parts()
    gate = Gate(parts.fs, "consumequeue")
    sent = 0
    async with parts.running():
        while not parts.store.refusal:
            put(parts.store, "t", 0, b"%d" % sent)
            sent += 1
            await trio.sleep(0.1)
        assert 10 < parts.store.entries_waiting <= 12
        with pytest.raises(DiskFull, match="entries of consume queues wait in memory"):
            put(parts.store, "t", 0, b"one too many")
        gate.open.set()
        while parts.store.refusal:  # noqa: ASYNC110  ends in a thread
            await trio.sleep(0.1)
        put(parts.store, "t", 0, b"%d" % sent)
    assert bodies(parts.store, "t", 0) == [b"%d" % n for n in range(sent + 1)]
