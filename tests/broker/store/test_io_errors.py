"""Each call to the disk fails once, in work and at a start: nothing acknowledged is lost, the next start succeeds."""

import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import StoreError, Unreadable
from tests.broker.store.support import SMALL, bodies, new_store, open_store, put, put_batch
from tests.support.amounts import share_of
from tests.support.bad_medium import SECTOR_BYTES
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
    for nth in share_of(range(1, 10_000), 6):
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
    for nth in share_of(range(1, 10_000), 6):
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


# --- bytes of the log that the disk cannot read: where a map is read, they end the process

FILE = SMALL.commitlog_segment_bytes
FILES = 3


def on_disk_only(*, killed: bool) -> MemoryFiles:
    """A store with a checkpoint in the middle of its log; no bytes of the log are in memory."""
    fs = MemoryFiles()
    store = open_store(fs)
    while store.log.end < (FILES - 1) * FILE + 2000:
        put(store, "t", 0, bytes(500), b"KEYS\x01k\x02")
        if FILE < store.log.end < FILE + 2000:
            store.checkpoint(with_ends=True)
    store.flush()
    if not killed:
        store.close()
    fs = fs.killed()
    for number in range(FILES):
        fs.cold.mark(f"/store/commitlog/{number * FILE:020d}")
    return fs


@pytest.mark.parametrize("killed", [True, False])
def test_a_start_that_needs_bytes_which_the_disk_cannot_read_names_their_place(killed: bool) -> None:
    refused = 0
    for at in range(0, FILES * FILE, 512):
        fs = on_disk_only(killed=killed)
        path = f"/store/commitlog/{at // FILE * FILE:020d}"
        fs.make_unreadable(path, at % FILE, 1)
        try:
            open_store(fs)
        except Unreadable as error:
            # The place is where the read of the lost sector began, which may be up to 4 KiB earlier.
            assert error.file == path and error.offset < at % FILE + SECTOR_BYTES
            refused += 1
        else:
            # Nobody has looked: the map would have ended the process.
            assert not fs.cold.resident(path, at % FILE, 1), at
    assert refused >= (FILE // 512 if killed else 1)


def test_an_index_that_catches_up_outside_of_the_event_loop_meets_an_error() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, bytes(500), b"KEYS\x01k\x02")
    path = f"/store/commitlog/{0:020d}"
    fs.cold.mark(path)
    fs.make_unreadable(path, 0, 1)
    with pytest.raises(Unreadable):
        store.build_index(10)
