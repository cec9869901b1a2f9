"""Ends a cut that a crash interrupted, at the start of a store, before anything else is read.

Everything is done again from the intent, as it is not known how far the cut went: see intent.py.
"""

from broker.store.checkpoint import Checkpoint, CheckpointMark, rocketmq_times
from broker.store.cut.files import cut_log, cut_queues
from broker.store.cut.intent import Intent, read_intent, remove_intent
from broker.store.index.index import Index
from broker.store.log.commitlog import CommitLog
from broker.store.queue.ends import QueueEnds, read_queue_ends, write_queue_ends
from broker.store.queue.queues import Queues
from mqcommon.disk.files import FileSystem


def resume_cut(
    fs: FileSystem, directory: str, checkpoint: Checkpoint, log: CommitLog, queues: Queues, index: Index
) -> None:
    """End the cut that has begun, if there is one. ``index`` is loaded, log and queues are not. Blocks."""
    intent = read_intent(fs, directory)
    if intent is None:
        return
    # A kill may have come before the name was on disk; a power loss could then still undo the intent, but not the cut.
    fs.fsync_dir(directory)
    cut_log(fs, log.chain.directory, intent.start, intent.end)
    cut_queues(fs, queues, intent.queues)
    for file in index.retire_after(intent.start):
        fs.remove(file.file.path)
        file.close()
    index.cut(intent.start)
    state = checkpoint.state
    if state.log_offset is not None:
        offset, timestamp = min(state.log_offset, intent.start), min(state.log_timestamp, intent.timestamp)
        mark = CheckpointMark(offset, timestamp, 0, 0, [], [], None, index.state(), noted_to=offset)
        checkpoint.write(offset, timestamp, rocketmq_times(log, mark, clean=False))
    ends = read_queue_ends(fs, directory)
    if ends is not None:
        write_queue_ends(fs, directory, _cut_ends(ends, intent, index))
    remove_intent(fs, directory)


def _cut_ends(ends: QueueEnds, intent: Intent, index: Index) -> QueueEnds:
    queues = {topic: dict(by_id) for topic, by_id in ends.queues.items()}
    for cut in intent.queues:
        by_id = queues.setdefault(cut.topic, {})
        by_id.pop(cut.queue_id, None)
        if cut.next_offset:
            by_id[cut.queue_id] = cut.low, cut.next_offset
    return QueueEnds(ends.log_start, queues, index.ends(), ends.unfinished)
