"""Reads from the store what `history.py` needs: the last checkpoint, and the copies since then."""

from array import array
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import trio

from broker.delivery.timer.history import CHECKPOINT_QUEUE, Checkpoint, read_origins
from broker.store.log.commitlog import CommitLog
from broker.store.log.residency import NotResident, Span, resident_only, warm
from broker.store.store import MessageStore
from mqcommon.message.record import decode_record
from mqcommon.names import TIMER_TOPIC

# Bytes of the log that are read at once: some ms of work.
PIECE_BYTES = 1 << 20

T = TypeVar("T")


async def from_disk(read: Callable[[], T]) -> T:
    """The result of ``read``; what is on disk only is read in a thread."""
    got: Mapping[Span, bytes] | None = None
    while True:
        try:
            with resident_only(got):
                return read()
        except NotResident as cold:
            got = await trio.to_thread.run_sync(warm, cold, abandon_on_cancel=True)


async def last_checkpoint(store: MessageStore) -> Checkpoint | None:
    """The last one in the log; None if there is none. ProtocolError when it cannot be read."""
    end = store.max_offset(TIMER_TOPIC, CHECKPOINT_QUEUE)
    if not end or end <= store.min_offset(TIMER_TOPIC, CHECKPOINT_QUEUE):
        return None
    found = await from_disk(lambda: store.get(TIMER_TOPIC, CHECKPOINT_QUEUE, end - 1, 1, PIECE_BYTES))
    return Checkpoint.decode(decode_record(found.records).body) if found.count else None


async def copies_since(log: CommitLog, start: int) -> set[int]:
    """The origins of all copies from ``start`` on, where a record begins."""
    origins: array[int] = array("q")
    at, end = max(start, log.start), log.end
    while at < end:
        segment = log.chain.at(at)
        if segment is None:
            break
        size = min(at + PIECE_BYTES, segment.end, end) - at
        data = await from_disk(partial(log.read, at, size))
        after = at + read_origins(data, 0, origins)
        await trio.lowlevel.checkpoint()
        # A file may end in a few bytes that are too few for a filler.
        at = after if after > at else segment.end
    return set(origins)
