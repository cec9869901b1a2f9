"""What was delivered before the start: the rule, and the search of the log.

The rule: a timed message is delivered if, and only if, the log has its copy. A copy names the message: its
preparedTransactionOffset is the physical offset at which the message waited, plus 1, and its sysFlag is not that of a
transaction. Clients cannot set that field. A copy comes after its message in the log, and copy and mark are one record,
so a crash takes both or none: no message is delivered twice into one log, and none is lost with a copy that was lost.

So that a start need not read the whole log, the broker writes a checkpoint as a message into queue 1 of
rmq_sys_wheel_timer. It says: of the messages before offset ``read_to`` of queue 0, those in slots up to ``done_slot``
are done, and those in later slots were not delivered before ``position`` of the log; none before ``low`` waits.
Later messages count as waiting until a copy is found. The copies are looked for from ``position`` on. A checkpoint is
in the log itself, after all that it speaks of: whatever a crash or a change of the master cuts off the log, the last
checkpoint that is left is true.
"""

from array import array
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

import trio

from broker.store.log.commitlog import CommitLog
from broker.store.log.residency import NotResident, Span, resident_only, warm
from broker.store.store import MessageStore
from mqcommon.errors import ProtocolError
from mqcommon.message.flags import HOSTS_V6, TRANSACTION_MASK
from mqcommon.message.layout import BLANK_MAGIC, HEAD_V4, HEADS, MAGIC_V1, MAGIC_V2, SIZE_MAGIC
from mqcommon.message.record import decode_record
from mqcommon.names import TIMER_TOPIC

#: The queue of checkpoints.
CHECKPOINT_QUEUE = 1
_VERSION = b"1"
_HEAD = HEAD_V4.reader("size", "magic", "sys_flag")
_ORIGINS = {bits: head.reader("prepared_transaction_offset") for bits, head in HEADS.items()}
#: As many bytes as the head of any record has.
HEAD_BYTES = max(head.size for head in HEADS.values())


class TimerCheckpoint(NamedTuple):
    """See the module."""

    low: int = 0
    read_to: int = 0
    done_slot: int = -1
    position: int = 0

    def encode(self) -> bytes:
        return b" ".join([_VERSION, *(b"%d" % value for value in self)])

    @classmethod
    def decode(cls, body: bytes) -> "TimerCheckpoint":
        """ProtocolError when ``body`` is no checkpoint."""
        version, *values = body.split(b" ")
        if version != _VERSION or len(values) != 4:
            raise ProtocolError(f"a checkpoint of timers begins with {body[:40]!r}")
        try:
            return cls(*map(int, values))
        except ValueError as error:
            raise ProtocolError(f"a checkpoint of timers has bad numbers: {error}") from None

    @classmethod
    def of_rocketmq(cls, data: bytes) -> "TimerCheckpoint":
        """From RocketMQ's file ``timercheck``. Its log has no marks, so its copies are not looked for."""
        if len(data) < 32:
            raise ProtocolError(f"the file has {len(data)} bytes, at least 32 are needed")
        read_ms, read_to = (int.from_bytes(data[at : at + 8], "big", signed=True) for at in (0, 16))
        return cls(0, max(read_to, 0), max(read_ms, 0) - 1, 0)


class History:
    """Says which messages of the queue were delivered before the start."""

    def __init__(self, checkpoint: TimerCheckpoint, delivered: set[int]) -> None:
        """``delivered``: the origins of all copies from the checkpoint's position on, as copies name them."""
        self._read_to = checkpoint.read_to
        self._done = checkpoint.done_slot
        self._delivered = delivered
        #: The latest slot of which a message was delivered.
        self.done_slot = checkpoint.done_slot

    def waits(self, offset: int, slot: int, physical: int) -> bool:
        """Whether the message at ``offset`` of the queue and ``physical`` of the log is still to be delivered."""
        if physical + 1 in self._delivered:
            self.done_slot = max(self.done_slot, slot)
            return False
        return offset >= self._read_to or slot > self._done


def read_origins(data: bytes, at: int, into: "array[int]") -> int:
    """Add the origins of the records from ``at`` of ``data`` on; returns where the next record begins.

    That may be past the end, as only heads are looked at. The rest of a file after a filler is skipped by its size.
    """
    last = len(data) - HEAD_BYTES
    while at <= last:
        size, magic, sys_flag = _HEAD.unpack_from(data, at)
        if magic not in (MAGIC_V1, MAGIC_V2):
            break
        if not sys_flag & TRANSACTION_MASK:
            (origin,) = _ORIGINS[sys_flag & HOSTS_V6].unpack_from(data, at)
            if origin:
                into.append(origin)
        at += size
    if at + SIZE_MAGIC.size <= len(data):
        size, magic = SIZE_MAGIC.unpack_from(data, at)
        if magic == BLANK_MAGIC:
            at += size
        elif magic not in (MAGIC_V1, MAGIC_V2):
            raise ProtocolError(f"no record begins at byte {at} of a piece of the log")
    return at


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


async def last_checkpoint(store: MessageStore) -> TimerCheckpoint | None:
    """The last one in the log; None if there is none. ProtocolError when it cannot be read."""
    end = store.max_offset(TIMER_TOPIC, CHECKPOINT_QUEUE)
    if not end or end <= store.min_offset(TIMER_TOPIC, CHECKPOINT_QUEUE):
        return None
    found = await from_disk(lambda: store.get(TIMER_TOPIC, CHECKPOINT_QUEUE, end - 1, 1, PIECE_BYTES))
    return TimerCheckpoint.decode(decode_record(found.records).body) if found.count else None


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
