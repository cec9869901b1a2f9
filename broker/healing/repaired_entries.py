"""Gives messages of a repaired block their queue entries, which a start could not make of the damaged bytes.

A flipped bit in a record's topic, queue or offset, which no checksum of RocketMQ's covers, makes the start put the
entry elsewhere, and leave a blank entry in its place. Readers skip blanks, so the repair has to fill them. A batch
queue has no blanks: its entries stay as they are, and so does an entry that is not in a file yet.
Neighbours: healer.py and replication/dledger/log_disk.py (repair the log); store/queue/entry_repair.py (entries that
readers find wrong).
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

import trio

from skylark.broker.healing.judgement import sound_records
from skylark.broker.healing.rewriting import MARGINS, LogBlocks
from skylark.broker.store.log.residency import NotResident, resident_only, warm
from skylark.broker.store.log.segment import Segment
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.entry import BLANK_SIZE, ENTRY, ENTRY_BYTES
from skylark.broker.store.queue.rebuild import is_queued
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.errors import FileClosed, ProtocolError, SkylarkError
from skylark.mqcommon.message.layout import BLANK_MAGIC, SIZE_MAGIC
from skylark.mqcommon.message.light import in_each_queue
from skylark.mqcommon.message.record import Record, decode_record

logger = logging.getLogger(__name__)

# How many blank entries in a row are passed by, to find the next message.
MOST_BLANKS = 100
# How many records are looked at in one turn of the event loop: each takes some microseconds.
_RECORDS_A_TURN = 100
# How often the entries around a record are read from the disk. More reads are needed only where memory is so short
# that entries are evicted at once.
_MAX_READS = 16


async def give_entries(store: MessageStore, blocks: LogBlocks, block: Block) -> None:
    """Give the messages in ``block``, which is right again, the entries that are blank in their queues."""
    log = store.log
    segment, cuts = log.chain.at(block.start), log.cuts
    if segment is None:
        return
    try:
        records = await trio.to_thread.run_sync(records_in, blocks, segment, block, log.raw_end)
    except (FileClosed, FileNotFoundError):
        return  # the block was removed meanwhile
    except OSError as error:
        text = "the records of the repaired block at %d of the log cannot be read, so readers may skip some: %s"
        logger.error(text, block.start, error)
        return
    await fill_blanks(store, records, lambda: log.cuts == cuts)


def records_in(blocks: LogBlocks, segment: Segment, block: Block, log_end: int) -> list[Record]:
    """The sound records that have bytes in ``block``, in the order of the log.

    A record of light queues comes once more for each of them, as the record of the light queue. Blocks; for a thread.
    Raises FileClosed, or OSError.
    """
    records: list[Record] = []
    for margin in MARGINS:
        start, end = max(block.start - margin, segment.base), min(block.end + margin, segment.end, log_end)
        data = blocks.around(segment, start, end)
        # The first record may begin before the block, and the last record may end after the block.
        found = [each for each in sound_records(start, data, segment.size) if each.end > block.start]
        found = [each for each in found if each.start < block.end]
        records = []
        for raw in [each.data for each in found if SIZE_MAGIC.unpack_from(each.data)[1] != BLANK_MAGIC]:
            try:
                in_each_queue(records.append)(decode_record(raw, check_crc=False))
            except ProtocolError:
                continue
        if found and found[0].start <= block.start and found[-1].end >= block.end:
            break
    return records


async def fill_blanks(store: MessageStore, records: Sequence[Record], is_current: Callable[[], bool]) -> int:
    """Give ``records`` the entries that are blank in their queues; returns how many.

    ``is_current``: whether the log still has the records; it may be cut while a thread reads entries.
    """
    filled: dict[ConsumeQueue, list[int]] = {}
    for number, record in enumerate(records):
        queue = await _filled(store, record, is_current)
        if queue is not None:
            filled.setdefault(queue, []).append(record.queue_offset)
        if queue is not None or number % _RECORDS_A_TURN == 0:
            await trio.lowlevel.checkpoint()
    for queue, offsets in filled.items():
        await _sync(queue, offsets)
        text = "readers find messages of a repaired block again: %d of queue %s/%d, from offset %d on"
        logger.warning(text, len(offsets), queue.topic, queue.queue_id, offsets[0])
    return sum(map(len, filled.values()))


async def _filled(store: MessageStore, record: Record, is_current: Callable[[], bool]) -> ConsumeQueue | None:
    """The queue of ``record`` if the entry of the record was blank there, and is filled now."""
    got, why = None, "memory is too short to keep the entries"
    for _ in range(_MAX_READS):
        if not is_current():
            return None
        # Found anew each time: the topic may be deleted while a thread reads.
        queue = store.queues.find(record.topic, record.queue_id)
        if queue is None or queue.is_batch or not is_queued(record.sys_flag):
            return None
        try:
            with resident_only(got):
                if not _is_blank(queue, record.queue_offset) or not _is_between(queue, record):
                    return None
                seen = ENTRY.pack(*queue.entry(record.queue_offset))
            right = ENTRY.pack(record.physical_offset, record.size, store.tag_codes.of_record(record))
            return queue if queue.replace_entries(record.queue_offset, seen, right) else None
        except NotResident as cold:
            needed = cold
        try:
            got = await trio.to_thread.run_sync(warm, needed, got)
        except (OSError, SkylarkError) as error:
            why = str(error)
            break
    text = "the entry of message %d of queue %s/%d cannot be read, so readers may skip the message: %s"
    logger.error(text, record.queue_offset, record.topic, record.queue_id, why)
    return None


async def _sync(queue: ConsumeQueue, offsets: Iterable[int]) -> None:
    """Make the entries durable: after a power loss nothing would find that they are blank again."""
    files = {segment.path: segment.file for each in offsets if (segment := queue.chain.at(each * ENTRY_BYTES))}
    for path, file in files.items():
        try:
            await trio.to_thread.run_sync(file.sync)
        except FileClosed:
            continue  # the queue was removed
        except OSError as error:
            logger.error("%s cannot be synced: after a power loss readers may skip repaired messages: %s", path, error)


def _is_blank(queue: ConsumeQueue, offset: int) -> bool:
    return queue.min_offset <= offset < queue.next_offset and queue.entry(offset)[1] == BLANK_SIZE


def _is_between(queue: ConsumeQueue, record: Record) -> bool:
    """Whether the record lies between the messages before and after it: else it is of an earlier topic of the name."""
    offset = record.queue_offset
    first = max(queue.min_offset, offset - MOST_BLANKS)
    before = next(_places(queue, range(offset - 1, first - 1, -1)), None)
    if before is None and first > queue.min_offset:
        return False  # the message before the record is not known
    after = next(_places(queue, range(offset + 1, min(queue.next_offset, offset + 1 + MOST_BLANKS))), None)
    return (before is None or before < record.physical_offset) and (after is None or record.physical_offset < after)


def _places(queue: ConsumeQueue, offsets: range) -> Iterator[int]:
    """Where the messages at these offsets lie in the log; blanks are passed by."""
    for offset in offsets:
        physical, size, _ = queue.entry(offset)
        if size != BLANK_SIZE:
            yield physical
