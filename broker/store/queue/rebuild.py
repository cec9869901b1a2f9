"""Finds consume queues with missing entries, by comparison with the whole log, and rebuilds them from it.

Invariant: a rebuilt queue has an entry at each queue offset for which the log has a record, and no other entry. All
entries come from the log; no part of the old files is kept, as they are known to be wrong somewhere. The danger is to
renumber messages: consumers have committed offsets, so each message must return to the offset that its record names.
The first record may have any offset, as older files of the log are removed. After that, a gap is accepted only if the
log before it could have held the missing messages (a repair leaves such gaps), and an offset that goes back only if it
is 0 (the topic was deleted and made again). Anything else means that the log itself is wrong: StoreCorrupt, no guess.
recovery.py writes the names of the queues to queueEnds before the first file goes. So if this start is killed half way,
the next one rebuilds them again.
"""

from collections.abc import Iterable

from skylark.broker.store.log.commitlog import CommitLog, OnProgress, OnRecord, scan_log
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.entry import messages_in
from skylark.broker.store.queue.queues import Queues
from skylark.broker.store.queue.tags import TagCodes
from skylark.mqcommon.errors import StoreCorrupt
from skylark.mqcommon.message.flags import INNER_BATCH, TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from skylark.mqcommon.message.light import in_each_queue
from skylark.mqcommon.message.record import Record


def is_queued(sys_flag: int) -> bool:
    """Whether a record belongs in a consume queue: half and rolled-back transactional messages do not."""
    return sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT)


def find_incomplete(log: CommitLog, queues: Queues, on_progress: OnProgress) -> list[ConsumeQueue]:
    """The queues that lack a message of the log, or have more than the log."""
    found: dict[tuple[str, int], tuple[int, int]] = {}

    def count(record: Record) -> None:
        if is_queued(record.sys_flag):
            place, offset = (record.topic, record.queue_id), record.queue_offset
            # A topic that was deleted and made again starts at 0.
            first = found[place][0] if place in found and offset else offset
            found[place] = first, offset + messages_in(record)

    _scan_all(log, in_each_queue(count), on_progress)
    return [
        queue
        for (topic, queue_id), (first, end) in found.items()
        if (queue := queues.get(topic, queue_id)).next_offset != end or queue.min_offset > first
    ]


def rebuild_queues(
    log: CommitLog, queues: Queues, broken: Iterable[ConsumeQueue], tag_codes: TagCodes, on_progress: OnProgress
) -> list[ConsumeQueue]:
    """Rebuild the ``broken`` queues and return them. StoreCorrupt if the log is not sound up to its end.

    A queue whose kind was not known is made again as what its records say.
    """
    places = dict.fromkeys([(queue.topic, queue.queue_id) for queue in broken])
    # The scan may have made a queue again, as one of the other kind.
    wanted = {place: queues.get(*place) for place in places}
    for queue in wanted.values():
        queues.clear(queue)
        queue.continue_at(0)

    def put(record: Record) -> None:
        queue = wanted.get((record.topic, record.queue_id))
        if queue is None or not is_queued(record.sys_flag):
            return
        if record.sys_flag & INNER_BATCH and not queue.is_batch:
            queue = queues.of_record(record.topic, record.queue_id, record.sys_flag, record.queue_offset)
            wanted[record.topic, record.queue_id] = queue
        offset, low, high = record.queue_offset, queue.min_offset, queue.next_offset
        # The most messages that the log before this record can have held.
        most_lost = (record.physical_offset - log.start) // queue.least_bytes
        if 0 < offset < high or (low < high < offset - most_lost):
            raise StoreCorrupt(
                log.chain.directory,
                record.physical_offset,
                f"the record says it is message {offset} of {queue.topic}/{queue.queue_id}, where {high} is expected."
                " To examine the store, run: broker verifyStore",
            )
        queue.put_record(record, tag_codes.of_record(record))
        queues.touch(queue)

    _scan_all(log, in_each_queue(put), on_progress)
    return list(wanted.values())


def _scan_all(log: CommitLog, on_record: OnRecord, on_progress: OnProgress) -> None:
    found = scan_log(log, log.start, on_record, on_progress, check_crc=False)
    if found.end < log.end:
        segment = log.chain.at(found.end)
        assert segment is not None
        reason = found.reason or "zeros where a record was"
        raise StoreCorrupt(
            segment.path, found.end - segment.base, f"{reason}. To examine the store, run: broker verifyStore"
        )
