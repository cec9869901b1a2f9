"""Every file of a store cut at every byte, zeroed from every byte on, and with a bit flipped in every byte.

After each the store opens with all that was durable, or StoreCorrupt names file and offset, or (for rot that no start
looks for, because it reads only what is behind the checkpoint) ``verifyStore`` tells it. Never anything else.
"""

from dataclasses import dataclass
from enum import Enum

import pytest

from skylark.broker.commands.verify_store import verify
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.mqcommon.errors import ProtocolError, StoreCorrupt, StoreError
from skylark.mqcommon.message.layout import MAGIC_V1
from skylark.mqcommon.message.record import decode_record
from tests.broker.store.support import new_store, put, read_all
from tests.support.memory_files import MemoryFiles
from tests.support.rot import Ways, cut_anywhere, flipped_anywhere, zeroed_anywhere, zeros_after

TINY = StoreOptions(
    directory="/store",
    commitlog_segment_bytes=300,
    consumequeue_segment_bytes=20 * 4,
    index_slots=4,
    index_capacity=8,
)
QUEUES = (("t", 0), ("t", 1), ("u", 0))
SENT = 10
FLUSHED = 9


class LastStop(Enum):
    CLEAN = "clean stop"
    KILLED = "kill"
    POWER_LOSS = "power loss"


@dataclass(frozen=True)
class Whole:
    """A store before it is damaged, and what was sent to it, by queue.

    How many messages of each were flushed, and how many must be there when it is opened again.
    """

    fs: MemoryFiles
    sent: dict[tuple[str, int], list[bytes]]
    flushed: dict[tuple[str, int], int]
    durable: dict[tuple[str, int], int]


def whole(last_stop: LastStop) -> Whole:
    """A store of some files of each kind, left in this way."""
    fs = MemoryFiles()
    store = new_store(fs, options=TINY)
    store.open()
    sent: dict[tuple[str, int], list[bytes]] = {queue: [] for queue in QUEUES}
    flushed: dict[tuple[str, int], int] = {}
    for n in range(SENT):
        queue = QUEUES[n % len(QUEUES)]
        body = b"%d" % n * 3
        put(store, *queue, body, b"UNIQ_KEY\x01%d\x02" % n)
        sent[queue].append(body)
        if n + 1 == FLUSHED - 1 and last_stop is LastStop.KILLED:
            # Only a start after a kill reads what later checkpoints add to the noted ends.
            store.build_index(SENT)
            store.checkpoint(with_ends=True)
        if n + 1 == FLUSHED:
            store.build_index(SENT)
            store.flush()
            store.checkpoint(with_ends=last_stop is not LastStop.KILLED)
            flushed = {queue: len(bodies) for queue, bodies in sent.items()}
    store.build_index(SENT)
    everything = {queue: len(bodies) for queue, bodies in sent.items()}
    if last_stop is LastStop.CLEAN:
        store.close()
        return Whole(fs, sent, everything, everything)
    fs = fs.killed()
    if last_stop is LastStop.KILLED:
        return Whole(fs, sent, flushed, everything)
    fs.boots += 1
    return Whole(fs, sent, flushed, flushed)


def damaged(fs: MemoryFiles, path: str, data: bytes) -> MemoryFiles:
    """The same disk with another content of one file."""
    after = fs.killed()
    after.boots = fs.boots
    after.overwrite(path, data)
    return after


@dataclass(frozen=True)
class Opened:
    """An open store; whether it told of a torn tail."""

    store: MessageStore
    torn: bool


def open_or_refuse(fs: MemoryFiles) -> Opened | StoreCorrupt:
    """The open store, or why it was refused: with file, offset and reason."""
    store = new_store(fs, options=TINY)
    try:
        report = store.open()
    except StoreCorrupt as error:
        assert error.file.startswith("/store/") and error.offset >= 0 and error.reason
        return error
    assert bool(report.torn_file) == bool(report.torn_reason)
    return Opened(store, bool(report.torn_file))


def check(opened: Opened, before: Whole) -> None:
    """All that was durable is there and can be found; what is left is a beginning; the store takes messages.

    What was not flushed may be gone after a power loss, and behind a torn tail that was told of.
    """
    store = opened.store
    least = before.flushed if opened.torn else before.durable
    for queue, sent in before.sent.items():
        left = [record.body for record in read_all(store, *queue)]
        assert left == sent[: len(left)], "made up or out of order"
        assert len(left) >= least[queue], f"{least[queue] - len(left)} durable messages are lost"
        for body in left:
            assert len(store.query(queue[0], body[:1].decode(), 9, 0, 1 << 60).records) == 1
        assert put(store, *queue, b"more") == len(left)
        assert read_all(store, *queue)[-1].body == b"more"


def unprotected(log_file: bytes) -> set[int]:
    """Places of a commit log file where no CRC tells that a byte is another, and no start sees it: queue numbers."""
    places: set[int] = set()
    at = 0
    while log_file[at + 4 : at + 8] == MAGIC_V1.to_bytes(4, "big"):
        places.update(range(at + 12, at + 16))
        at += decode_record(log_file, at).size
    return places


LAST_STOPS = pytest.mark.parametrize("last_stop", list(LastStop), ids=lambda last_stop: last_stop.value)
KINDS = ("commitlog/", "consumequeue/", "index/", "checkpoint", "queueEnds", "inventory", "abort", "lock")


def files(before: Whole, kind: str) -> list[str]:
    return [path for path in before.fs.paths() if path.startswith(f"/store/{kind}")]


def told(fs: MemoryFiles) -> bool:
    """Whether verifyStore finds damage."""
    return not verify(fs, TINY, repair=False, say=lambda line: None)


@LAST_STOPS
def test_every_kind_of_file_is_there(last_stop: LastStop) -> None:
    before = whole(last_stop)
    kinds = {kind for kind in KINDS if files(before, kind)}
    assert kinds == set(KINDS) - ({"abort"} if last_stop is LastStop.CLEAN else set())
    assert len(files(before, "commitlog/")) > 3 and len(files(before, "index/")) > 1
    assert len(files(before, "queueEnds")) == (2 if last_stop is LastStop.KILLED else 1)
    opened = open_or_refuse(before.fs)
    assert isinstance(opened, Opened)
    check(opened, before)


@LAST_STOPS
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_at_any_byte_loses_nothing_silently(kind: str, last_stop: LastStop) -> None:
    before = whole(last_stop)
    for path in files(before, kind):
        for at, data in cut_anywhere(before.fs.read(path)):
            opened = open_or_refuse(damaged(before.fs, path, data))
            if isinstance(opened, StoreCorrupt):
                assert kind == "commitlog/", f"{path} cut at {at} stops the start: {opened}"
            else:
                check(opened, before)


@LAST_STOPS
@pytest.mark.parametrize("kind", KINDS)
def test_zeros_after_the_end_of_a_file_lose_nothing(kind: str, last_stop: LastStop) -> None:
    before = whole(last_stop)
    for path in files(before, kind):
        for at, data in zeros_after(before.fs.read(path)):
            opened = open_or_refuse(damaged(before.fs, path, data))
            if isinstance(opened, StoreCorrupt):
                assert kind == "commitlog/", f"{path} with {len(data) - at} zeros more stops the start: {opened}"
            else:
                check(opened, before)


@LAST_STOPS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ways", [zeroed_anywhere, flipped_anywhere], ids=["zeros", "bits"])
def test_rot_is_repaired_refused_or_told(ways: Ways, kind: str, last_stop: LastStop) -> None:
    before = whole(last_stop)
    paths = files(before, kind)
    # The files in the middle of the log are like the first one.
    for path in dict.fromkeys([*paths[:1], *paths[-2:]]):
        content = before.fs.read(path)
        exempt = unprotected(content) if kind == "commitlog/" and ways is flipped_anywhere else ()
        for at, data in ways(content):
            fs = damaged(before.fs, path, data)
            opened = open_or_refuse(damaged(before.fs, path, data))
            if isinstance(opened, StoreCorrupt):
                continue
            try:
                check(opened, before)
            except (AssertionError, ProtocolError, StoreError):
                assert at in exempt or told(fs), f"{path} damaged at {at}: nobody tells"
