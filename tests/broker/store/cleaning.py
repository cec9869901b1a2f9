"""A cleaning without its loop: the steps of tasks/clean.py, one after the other."""

from skylark.broker.options import BrokerOptions
from skylark.broker.store.removal import Removal
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.disk.files import FileSystem

RULES = BrokerOptions().retention_rules


def clean(fs: FileSystem, store: MessageStore, files: int) -> int:
    """Remove up to ``files`` of the log and all that follows from it; returns how many."""
    store.checkpoint(with_ends=True)
    removal = Removal(fs, "/store", store)
    removed = 0
    while removed < files and removal.retire_log_file(store.ends_noted_to) is not None:
        removal.remove_log_files()
        removed += 1
    follow(removal, store)
    return removed


def follow(removal: Removal, store: MessageStore) -> None:
    """Queues and index forget what is gone from the log."""
    queues = list(store.queues)
    starts = removal.find_starts([queue.bounds_search() for queue in queues], store.log.start)
    for queue, start in zip(queues, starts, strict=True):
        queue.start_at(start)
        store.queues.touch(queue)
    removal.remove_queue_files([queue.chain for queue in queues])
    removal.retire_index_files()
    removal.remove_index_files()
