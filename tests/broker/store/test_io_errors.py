"""Each call to the disk fails once, in work and at a start: nothing acknowledged is lost, the next start succeeds."""

import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import StoreError
from tests.broker.store.support import bodies, new_store, open_store, put, put_batch
from tests.support.amounts import share_of
from tests.support.memory_files import MemoryFiles

OPERATIONS = (
    "allocate", "create", "fsync_dir", "mkdirs", "open", "read", "remove", "rename", "sync", "truncate", "write",
)  # fmt: skip
# A disk that breaks, and a full disk.
CODES = pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])

Queue = tuple[str, int]


class Work:
    """A bit of everything; `acked` is what the store took."""

    def __init__(self, fs: MemoryFiles) -> None:
        self.store = open_store(fs)
        self.acked: dict[Queue, list[bytes]] = {}

    def run(self) -> None:
        """All steps, whatever becomes of each."""
        store = self.store
        for n in range(16):
            self._try(partial(self._put, ("t", n % 3), b"%d" % n * 99))
            self._try(partial(self._batch, ("u", 0), [b"%d-%d" % (n, at) for at in range(7)]))
            if n % 8 == 5:
                self._try(partial(store.build_index, 1000))
                self._try(partial(self._checkpoint, with_ends=n > 8))
                for queue in store.queues:
                    queue.close()
        self._try(store.close)

    def _put(self, queue: Queue, body: bytes) -> None:
        offset = put(self.store, *queue, body, b"KEYS\x01k\x02")
        sent = self.acked.setdefault(queue, [])
        assert offset == len(sent)
        sent.append(body)

    def _batch(self, queue: Queue, sent: list[bytes]) -> None:
        offset = put_batch(self.store, *queue, sent)
        assert offset == len(self.acked.setdefault(queue, []))
        self.acked[queue] += sent

    def _checkpoint(self, *, with_ends: bool) -> None:
        self.store.checkpoint(with_ends=with_ends)

    def _try(self, step: Callable[[], object]) -> None:
        with suppress(OSError, StoreError):
            step()


def check(store: MessageStore, acked: dict[Queue, list[bytes]]) -> None:
    for queue, sent in acked.items():
        assert bodies(store, *queue) == sent, queue
        assert put(store, *queue, b"more") == len(sent)


@CODES
@pytest.mark.parametrize("operation", OPERATIONS)
def test_work_that_the_disk_refuses_changes_nothing_else(operation: str, code: int) -> None:
    for nth in share_of(range(1, 10_000), 3):
        fs = MemoryFiles()
        work = Work(fs)
        fs.faults.fail(operation, nth=nth, code=code)
        work.run()
        if fs.faults.pending:
            break
        check(open_store(fs.killed()), work.acked)


@CODES
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_start_that_the_disk_refuses_is_one_more_start(operation: str, code: int) -> None:
    whole = MemoryFiles()
    work = Work(whole)
    work.run()
    open_store(whole)
    for nth in share_of(range(1, 10_000), 3):
        fs = whole.killed()
        for path in [path for path in fs.paths() if "/t/1/" in path]:
            fs.remove(path)
        fs.faults.fail(operation, nth=nth, code=code)
        store = new_store(fs)
        with suppress(OSError, StoreError):
            store.open()
        if fs.faults.pending:
            break
        check(open_store(fs.killed()), work.acked)
