"""Gives messages of a repaired block their queue entries, which a start could not make of the damaged bytes.

A flipped bit in a record's topic, queue or offset, which no checksum of RocketMQ's covers, makes the start put the
entry elsewhere, and leave a blank one in its place. Readers skip blanks, so the repair has to fill them.
Neighbours: healer.py (calls), store/queue/entry_repair.py (entries that readers find wrong).
"""

import logging
from collections.abc import Iterable, Iterator

from skylark.broker.healing.judgement import sound_records
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.entry import BLANK_SIZE, ENTRY
from skylark.broker.store.queue.rebuild import is_queued
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.layout import BLANK_MAGIC, SIZE_MAGIC
from skylark.mqcommon.message.record import Record, decode_record

logger = logging.getLogger(__name__)

# Of the bytes after a block: the last record of the block may end there.
_BEYOND_BYTES = 64 * 1024
_NONE = -1
# How many blank entries in a row are passed by, to find the next message.
_MOST_BLANKS = 100


def records_in(log: CommitLog, block: Block) -> list[Record]:
    """The sound records that begin in ``block``. Blocks; for a thread."""
    segment = log.chain.at(block.start)
    if segment is None:
        return []
    end = min(block.end + _BEYOND_BYTES, segment.end)
    data = segment.file.pread(block.start - segment.base, end - block.start)
    return [*_decoded(block, data, log.chain.segment_bytes)]


def _decoded(block: Block, data: bytes, segment_bytes: int) -> Iterator[Record]:
    for found in sound_records(block.start, data, segment_bytes):
        if found.start >= block.end:
            return
        if SIZE_MAGIC.unpack_from(found.data)[1] != BLANK_MAGIC:
            try:
                yield decode_record(found.data, check_crc=False)
            except ProtocolError:
                continue


def fill_blanks(store: MessageStore, records: Iterable[Record]) -> int:
    """Give ``records`` the entries that are blank in their queues; returns how many. For the event loop."""
    filled = 0
    for record in records:
        queue = store.queues.find(record.topic, record.queue_id)
        if queue is None or queue.is_batch or not is_queued(record.sys_flag):
            continue
        if _is_blank(queue, record.queue_offset) and _is_between(queue, record):
            seen = ENTRY.pack(*queue.entry(record.queue_offset))
            right = ENTRY.pack(record.physical_offset, record.size, store.tag_codes.of_record(record))
            filled += len(queue.replace_entries(record.queue_offset, seen, right))
    if filled:
        logger.warning("%d messages of a repaired block have their places in their queues again", filled)
    return filled


def _is_blank(queue: ConsumeQueue, offset: int) -> bool:
    return queue.min_offset <= offset < queue.next_offset and queue.entry(offset)[1] == BLANK_SIZE


def _is_between(queue: ConsumeQueue, record: Record) -> bool:
    """Whether the record lies between the messages before and after it: else it is of an earlier topic of the name."""
    before = _next_place(queue, range(record.queue_offset - 1, queue.min_offset - 1, -1))
    after = _next_place(queue, range(record.queue_offset + 1, queue.next_offset))
    return before < record.physical_offset and (after == _NONE or record.physical_offset < after)


def _next_place(queue: ConsumeQueue, offsets: range) -> int:
    """Where the first message at these offsets lies in the log; -1 if there is none near."""
    for offset in offsets[:_MOST_BLANKS]:
        physical, size, _ = queue.entry(offset)
        if size != BLANK_SIZE:
            return physical
    return _NONE
