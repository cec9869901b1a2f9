"""The open halves of this broker: which halves are open, how they end, and what is on disk about them.

A half ends with its message in its own queue (a commit), then with an op message that names the half. The op messages
of all halves that end in one turn of the loop are written at its end. Invariant: when this broker is killed, the log
has at most the commits of its last turn without their op messages. `recover` finds such commits, since a committed
message has the place of its half in the log; so a kill between the two does not deliver a message twice.
Consumer offsets of CID_RMQ_SYS_TRANS, as in RocketMQ, say where `recover` begins: at the first open half and at the
first op message that may name a half after it. They are saved a round late, as a slave may get offsets before the log.
Nothing here waits; `recover` and `half_at` are steps. Neighbours: transactions.py, checks.py.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from skylark.broker.cold_reads import reading
from skylark.broker.delivery.transaction.halves import first_offset
from skylark.broker.meta.consumer_offsets import ConsumerOffsets
from skylark.broker.store.store import MessageStore
from skylark.broker.writing.stored_properties import Incoming
from skylark.broker.writing.writer import Writer
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, SIZE_MAGIC
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import Record, decode_record
from skylark.mqcommon.names import TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from skylark.remoting.net.steps import Steps

# This many consecutive op messages are one row of `OpMessages`.
OPS_IN_A_ROW = 256


class EndedHalves:
    """Which halves are over, by queue offset: all halves before ``base``, and the marked halves after it.

    A half is a byte of an array, not an object, so a million open or finished halves cost a megabyte. `OpMessages`
    knows from which op message on a start must read to restore this state.
    """

    def __init__(self, base: int) -> None:
        self.base = base
        # A byte for each half from ``base`` on; halves after the end of the array are open.
        self._over = bytearray()

    def is_over(self, offset: int) -> bool:
        at = offset - self.base
        return at < 0 or (at < len(self._over) and self._over[at] == 1)

    def finish(self, offset: int) -> None:
        """Mark half ``offset`` as over."""
        at = offset - self.base
        if at < 0:
            return
        if at >= len(self._over):
            self._over.extend(bytes(at + 1 - len(self._over)))
        self._over[at] = 1

    def first_open(self, offset: int) -> int:
        """The first half at or after ``offset`` that is not over; it may not exist yet."""
        at = max(offset - self.base, 0)
        found = self._over.find(0, at)
        return self.base + (found if found >= 0 else max(len(self._over), at))

    def open_before(self, end: int) -> int:
        """How many halves before ``end`` are not over."""
        return max(end - self.base, 0) - self._over.count(1)

    def advance(self) -> int:
        """Move ``base`` to the first half that is not over; returns it."""
        done = self.first_open(self.base) - self.base
        if done:
            del self._over[:done]
            self.base += done
        return self.base


class OpMessages:
    """The op messages, in order, in rows with the highest half that each row names."""

    def __init__(self) -> None:
        # [offset of the first op message of a row, number of them, highest half that they name]
        self._rows: deque[list[int]] = deque()

    def add(self, op_offset: int, highest: int) -> None:
        """Add op message ``op_offset``, which names halves up to ``highest``."""
        rows = self._rows
        if rows and rows[-1][1] < OPS_IN_A_ROW:
            last = rows[-1]
            last[1] += 1
            last[2] = max(last[2], highest)
        else:
            rows.append([op_offset, 1, highest])

    def needed_from(self, base: int, op_end: int) -> int:
        """The first op message that may name a half at or after ``base``; ``op_end`` when there is none."""
        rows = self._rows
        while rows and rows[0][2] < base:
            rows.popleft()
        return rows[0][0] if rows else op_end


# RocketMQ's limit of a body.
MAX_BODY_BYTES = 4_096
# This many offsets always fit into one body.
OFFSETS_IN_A_BODY = MAX_BODY_BYTES // 20
#: The properties of an op message.
PROPERTIES = b"TAGS\x01d\x02"


def bodies(offsets: Sequence[int]) -> Iterator[tuple[bytes, int]]:
    """The bodies of op messages that name these halves ("12,15,"), and the highest offset in each.

    RocketMQ 5 writes a comma after each offset; version 4 wrote one offset alone.
    """
    for start in range(0, len(offsets), OFFSETS_IN_A_BODY):
        part = offsets[start : start + OFFSETS_IN_A_BODY]
        yield b"".join([b"%d," % offset for offset in part]), max(part)


def offsets_in(body: bytes) -> list[int]:
    """The halves that a body names; texts that are not numbers are left out."""
    return [int(text) for text in body.split(b",") if text.isdigit() and len(text) < 20]


GROUP = "CID_RMQ_SYS_TRANS"
# Messages that are read in one step.
SLICE = 256
SLICE_BYTES = 1 << 20
# A turn of the loop writes less than this, so commits without op messages are this near to the end of the log. When a
# turn commits many large messages, op messages are written before its end.
TAIL_BYTES = 64 << 20
MAX_UNNAMED_BYTES = 4 << 20


class Ledger:
    """The open halves of one broker. It has no state until `recover` has run."""

    def __init__(
        self, store: MessageStore, writer: Writer, offsets: ConsumerOffsets, clock: Clock, store_host: bytes
    ) -> None:
        self._store = store
        self._writer = writer
        self._offsets = offsets
        self._clock = clock
        self._store_host = store_host
        self._window = EndedHalves(0)
        self._op_messages = OpMessages()
        # Halves that have ended, and are not named by an op message yet.
        self._unnamed: list[int] = []
        self._unnamed_from = 0
        # The first half of a transaction -> its copy that is open.
        self._moved: dict[int, int] = {}
        # The progress to save next, with the end of the log at that time.
        self._saved_next: tuple[int, int, int] | None = None
        #: Whether halves can be ended.
        self.is_ready = False
        #: How often the state was forgotten: records read from the log before that may not be in it any more.
        self.era = 0

    @property
    def has_ops_to_write(self) -> bool:
        """Whether `write_ops` has work to do. Ends that `recover` finds are written when it has finished."""
        return self.is_ready and bool(self._unnamed)

    @property
    def half_end(self) -> int:
        """The queue offset of the next half."""
        return self._store.max_offset(TRANS_HALF_TOPIC, 0)

    @property
    def open_count(self) -> int:
        """How many halves are open; 0 while that is not known."""
        return self._window.open_before(self.half_end) if self.is_ready else 0

    # --- ending halves

    def open_offset(self, half: Record) -> int | None:
        """The queue offset of the open half of the transaction of ``half``, which may be its copy; None if it ended."""
        offset = half.queue_offset
        if self._moved:
            offset = self._moved.get(first_offset(half.properties, offset), offset)
        return None if self._window.is_over(offset) else offset

    def finish(self, offset: int, first: int | None = None) -> None:
        """Mark half ``offset`` as over. ``first``: the offset of the transaction's first half, if this ends it."""
        if first is not None:
            self._moved.pop(first, None)
        if not self._unnamed:
            self._unnamed_from = self._store.log.end
        self._window.finish(offset)
        self._unnamed.append(offset)
        # A start looks for commits without op messages in the last TAIL_BYTES only.
        if self._store.log.end - self._unnamed_from > MAX_UNNAMED_BYTES:
            self.write_ops()

    def replaced(self, half: Record, copy: int) -> None:
        """Mark ``half`` as over; its transaction continues as the half ``copy``."""
        self._moved[first_offset(half.properties, half.queue_offset)] = copy
        self.finish(half.queue_offset)

    def write_ops(self) -> None:
        """Write op messages for ended halves. RequestRefused when that is not possible now: the caller tries again."""
        unnamed = self._unnamed
        done = 0
        try:
            for body, highest in bodies(unnamed):
                now_ms = self._clock.now_ms()
                op = Incoming(TRANS_OP_TOPIC, 0, body, PROPERTIES, 0, 0, now_ms, self._store_host, 0)
                put = self._writer.put_again(op)
                self._op_messages.add(put.queue_offset, highest)
                done += body.count(b",")
        finally:
            del unnamed[:done]

    # --- going through the open halves

    def first_open(self, offset: int) -> int:
        """The first open half at or after ``offset``; the end of the queue if there is none."""
        return self._window.first_open(offset)

    def copies_between(self, offset: int, end: int) -> list[int]:
        """The open copies that checks have made, after ``offset`` and before ``end``, in order."""
        return sorted(copy for copy in self._moved.values() if offset < copy < end)

    def half_at(self, offset: int) -> Steps[Record | None]:
        """Half ``offset`` of the queue; None when the log does not have it any more."""
        return reading(lambda: self.read_half(offset))

    def read_half(self, offset: int) -> Record | None:
        """As `half_at`, for a caller that waits for the disk itself."""
        # Reading the queue compares the entry with the log and mends it. A wrong entry must not be taken for a removed
        # half: the half would be ended, and its message lost.
        found = self._store.get(TRANS_HALF_TOPIC, 0, offset, 1, SLICE_BYTES)
        try:
            half = decode_record(found.records) if found.count else None
        except ProtocolError:
            return None
        # A blank entry stands for a lost half; the read then returns a later half.
        return half if half is not None and half.queue_offset == offset else None

    # --- progress

    def forget(self) -> None:
        """Forget the state: this broker is not the master any more."""
        self.is_ready = False
        self.era += 1
        # Halves that are over and not named yet need no op message: the next master finds their commits in the log, and
        # checks the other halves.
        self._unnamed.clear()
        self._moved.clear()
        self._window, self._op_messages, self._saved_next = EndedHalves(0), OpMessages(), None

    def progress(self) -> tuple[int, int]:
        """The offsets that may be saved once the present log is on disk: of the topic of halves, of op messages."""
        base = min(self._window.advance(), self.half_end)
        if self._unnamed:
            # A start must find halves that are over but not named yet.
            base = min(base, *self._unnamed)
        op_end = self._store.max_offset(TRANS_OP_TOPIC, 0)
        return base, self._op_messages.needed_from(base, op_end)

    @property
    def _saved(self) -> tuple[int, int]:
        half_offset = self._offsets.query(GROUP, TRANS_HALF_TOPIC, 0)
        return max(half_offset, 0), max(self._offsets.query(GROUP, TRANS_OP_TOPIC, 0), 0)

    def is_saved(self, progress: tuple[int, int]) -> bool:
        """Whether there is nothing to save."""
        return progress == self._saved

    def save(self, progress: tuple[int, int]) -> None:
        """Save the progress of the last call; ``progress`` is saved by the next call.

        In Controller mode a progress waits until the log is confirmed up to the log's end at the time of the call:
        slaves copy offsets before they have the log.
        """
        if self._saved_next is not None:
            half_offset, op_offset, log_end = self._saved_next
            if self._store.confirmed is not None and self._store.confirmed() < log_end:
                return
            self._offsets.commit(GROUP, TRANS_HALF_TOPIC, 0, half_offset)
            self._offsets.commit(GROUP, TRANS_OP_TOPIC, 0, op_offset)
        self._saved_next = (*progress, self._store.log.end)

    # --- after a start or a change of the role

    def recover(self) -> Steps[None]:
        """Find the open halves. This broker is the master, and may take messages meanwhile.

        When the role changes meanwhile, `recover` ends without a result: parts of the log may have been replaced.
        """
        self.forget()
        era, end = self.era, self.half_end
        self._lower_saved()
        first = yield from reading(lambda: self._store.min_offset(TRANS_HALF_TOPIC, 0))
        base = min(max(self._saved[0], first), end)
        self._window = window = EndedHalves(base)
        # The order matters: op messages say which halves are over. Halves that they leave open are linked to their
        # copies. Last, the end of the log is searched for commits whose op message a kill has prevented.
        last_op = yield from self._read_ops()
        first_physical = yield from self._read_open(end)
        if first_physical is not None:
            yield from self._find_commits_without_ops(max(first_physical, last_op))
        if self.era != era:
            return
        window.advance()
        self.is_ready = True
        self.write_ops()

    def _lower_saved(self) -> None:
        """Lower saved offsets that are past the ends of this log's queues.

        A slave may have copied the offsets of its master but not the end of the master's log. As the master it stores
        other messages at these offsets, and its next start would take halves among them for ended halves.
        """
        for topic, saved in zip((TRANS_HALF_TOPIC, TRANS_OP_TOPIC), self._saved, strict=True):
            if saved > (end := self._store.max_offset(topic, 0)):
                self._offsets.commit_now(GROUP, topic, 0, end)

    def _read_ops(self) -> Steps[int]:
        """Read and apply the op messages; returns where the last op message is in the log."""
        offset, last = min(self._saved[1], self._store.max_offset(TRANS_OP_TOPIC, 0)), 0
        while True:
            at = offset
            got = yield from reading(lambda: self._store.get(TRANS_OP_TOPIC, 0, at, SLICE, SLICE_BYTES))  # noqa: B023
            if got.next_offset <= offset:
                return last
            for record in _records(got.records):
                over = offsets_in(record.body)
                last = record.physical_offset
                if over:
                    self._op_messages.add(record.queue_offset, max(over))
                for half in over:
                    if half < self.half_end:
                        self._window.finish(half)
            offset = got.next_offset
            yield None

    def _read_open(self, end: int) -> Steps[int | None]:
        """Link copies to the first halves of their transactions; returns where the first open half is in the log."""
        first_physical = None
        offset, count = self._window.first_open(self._window.base), 0
        while offset < end:
            half = yield from self.half_at(offset)
            if half is None:
                self.finish(offset)
            else:
                if first_physical is None:
                    first_physical = half.physical_offset
                self._link(half)
            offset = self._window.first_open(offset + 1)
            count += 1
            if count % SLICE == 0:
                yield None
        return first_physical

    def _link(self, half: Record) -> None:
        """Add an open half. If it is a copy, end the half before it: a kill came before that end was written."""
        first = first_offset(half.properties, half.queue_offset)
        if first == half.queue_offset:
            return
        before = self._moved.get(first, first)
        if before < half.queue_offset and not self._window.is_over(before):
            self.finish(before)
        self._moved[first] = half.queue_offset

    def _find_commits_without_ops(self, start: int) -> Steps[None]:
        """End the halves whose committed messages are in the log from ``start`` on, where a record begins."""
        log = self._store.log
        end, count = log.end, 0
        near = yield from reading(lambda: self._record_near(end - TAIL_BYTES))
        at = max(start, near, log.start)
        while at + BLANK_BYTES <= end:
            place = at
            size, half = yield from reading(lambda: self._committed_at(place))  # noqa: B023  called at once
            if not size:
                return
            offset = None if half is None else self.open_offset(half)
            if half is not None and offset is not None and offset < self.half_end:
                self.finish(offset, first_offset(half.properties, half.queue_offset))
            at += size
            count += 1
            if count % SLICE == 0:
                yield None

    def _committed_at(self, at: int) -> tuple[int, Record | None]:
        """(size of the record at ``at``, the half that it commits).

        The second delivery of a committed message has the bits of a commit, too, but no place of a half: so the unique
        keys of message and half are compared.
        """
        log = self._store.log
        size, magic = SIZE_MAGIC.unpack(log.read(at, BLANK_BYTES))
        if magic == BLANK_MAGIC:
            return size, None
        raw = log.record_at(at)
        if raw is None:
            return 0, None
        record = decode_record(raw, check_crc=False)
        # Only a commit has the place of a half.
        if record.sys_flag & TRANSACTION_MASK != TRANSACTION_COMMIT:
            return size, None
        found = self._store.record_at(record.prepared_transaction_offset)
        half = None if found is None else decode_record(found)
        key = find_property(record.properties, b"UNIQ_KEY")
        if half is None or half.topic != TRANS_HALF_TOPIC or find_property(half.properties, b"UNIQ_KEY") != key:
            return size, None
        return size, half

    def _record_near(self, offset: int) -> int:
        """Where in the log the last half before ``offset`` is, or an earlier half; 0 when that is not known."""
        queue = self._store.queues.find(TRANS_HALF_TOPIC, 0)
        if queue is None or offset <= 0 or queue.is_empty:
            return 0
        low, high = queue.min_offset, queue.next_offset
        while high - low > 1:
            middle = (low + high) // 2
            if queue.entry(middle)[0] <= offset:
                low = middle
            else:
                high = middle
        # A wrong entry may have led the search to a half after ``offset``, or may name no half at all.
        half = self.read_half(low)
        return 0 if half is None or half.physical_offset > offset else half.physical_offset


def _records(records: bytes) -> Iterator[Record]:
    at = 0
    while at < len(records):
        record = decode_record(records, at)
        at += record.size
        yield record
