"""Reads the messages of a task from a bucket: which bytes of which objects, by several requests at a time, checked.

The records of a topic are side by side in an object, sorted by queue. So one request often has the messages of many
queues. Messages that the bucket lacks, or has with wrong bytes, are reported to ``on_lost``.
Neighbours: reader.py (caller), mqcommon/tier/segment_index.py (what stands where).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np

from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.message.layout import MIN_RECORD
from skylark.mqcommon.tier.bucket import Bucket, NoSuchObject
from skylark.mqcommon.tier.record_places import LEAST_AT_ONCE, Ints, record_places
from skylark.spark_connector.offsets import LostRange, OffsetRange
from skylark.spark_connector.reading.batch_reader import Piece
from skylark.spark_connector.reading.pulling import Buffer, when_back

_REMOVED = "the bucket does not have them"
#: The most bytes of one request, unless one stretch has more.
FETCH_BYTES = 4 * 1024 * 1024
#: Requests at the same time, in one task.
MOST_AT_ONCE = 4


class Stored(NamedTuple):
    """A stretch of an object: whole records of one queue, with the offsets ``first`` up to, not including, ``end``.

    ``crc``: CRC-32 of the bytes.
    """

    position: int
    size: int
    crc: int
    first: int
    end: int


class Run(NamedTuple):
    """Messages of ``wanted``, whose queue has them in consecutive ``stretches`` of one object.

    The stretches may have earlier and later messages of the queue, too.
    """

    wanted: OffsetRange
    stretches: Sequence[Stored]


class StoredRun(NamedTuple):
    """A run, and the object that has it."""

    name: str
    run: Run


class Fetch(NamedTuple):
    """One request: consecutive runs of one object."""

    name: str
    runs: Sequence[Run]


class ReadableSegment(Protocol):
    """One segment: where its objects have messages of a queue. ``problem``: why its index cannot be read, or ""."""

    problem: str

    def runs(self, wanted: OffsetRange) -> Sequence[StoredRun]:
        """The messages of ``wanted`` that the segment has, in their order, at most FETCH_BYTES in a run."""


def fetches(
    segments: Iterable[ReadableSegment], ranges: Sequence[OffsetRange], on_lost: Callable[[LostRange], None]
) -> Iterator[Fetch]:
    """The requests that read ``ranges``; each queue's messages in their order."""
    # A task may have several ranges of a queue.
    reached = [one.start for one in ranges]
    # Of each range: why its next messages may be missing.
    reasons = [_REMOVED] * len(ranges)

    def skip(number: int, wanted: OffsetRange) -> None:
        if reached[number] < wanted.start:
            on_lost(LostRange(wanted.queue, reached[number], wanted.start, reasons[number]))
        reached[number], reasons[number] = wanted.end, _REMOVED

    for segment in segments:
        found: list[StoredRun] = []
        if segment.problem:
            reasons = [f"the bucket does not have them, or not their index: {segment.problem}"] * len(ranges)
        for number, one in enumerate(ranges):
            for each in segment.runs(one._replace(start=reached[number])):
                skip(number, each.run.wanted)
                found.append(each)
        yield from coalesced(found)
    for number, one in enumerate(ranges):
        skip(number, one._replace(start=one.end))


def coalesced(found: Iterable[StoredRun]) -> Iterator[Fetch]:
    """Runs that follow one another in an object as one request, up to FETCH_BYTES."""
    runs: list[Run] = []
    name, size, end = "", 0, 0
    for each in sorted(found, key=lambda each: (each.name, each.run.stretches[0].position)):
        first, last = each.run.stretches[0], each.run.stretches[-1]
        more = last.position + last.size - first.position
        if runs and (name != each.name or end != first.position or size + more > FETCH_BYTES):
            yield Fetch(name, runs)
            runs, size = [], 0
        runs.append(each.run)
        name, size, end = each.name, size + more, last.position + last.size
    if runs:
        yield Fetch(name, runs)


def read_all(
    bucket: Bucket, wanted: Iterable[Fetch], wait_ms: float, on_lost: Callable[[LostRange], None]
) -> Iterator[Piece]:
    """The messages, in the order of the requests. ``wait_ms``: how long to wait for a bucket that is away."""
    wanted = iter(wanted)
    with ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="rocketmq-tier") as threads:
        coming: deque[Future[list[Piece | LostRange]]] = deque()

        def begin() -> None:
            fetch = next(wanted, None)
            if fetch is not None:
                coming.append(threads.submit(read_one, bucket, fetch, wait_ms))

        try:
            for _ in range(MOST_AT_ONCE):
                begin()
            while coming:
                found = coming.popleft().result()
                begin()
                for each in found:
                    if isinstance(each, LostRange):
                        on_lost(each)
                    else:
                        yield each
        finally:
            for waiting in coming:
                waiting.cancel()


def read_one(bucket: Bucket, fetch: Fetch, wait_ms: float) -> list[Piece | LostRange]:
    """The messages of one request, and the ranges of messages that the bucket lacks, or has with wrong bytes."""
    start = fetch.runs[0].stretches[0].position
    last = fetch.runs[-1].stretches[-1]
    size = last.position + last.size - start
    try:
        data = when_back(lambda: bucket.get_range(fetch.name, start, size), wait_ms)
    except NoSuchObject:
        why = f"object {fetch.name} of the bucket is missing, or too short"
        return [LostRange(run.wanted.queue, run.wanted.start, run.wanted.end, why) for run in fetch.runs]
    return [each for run in fetch.runs for each in _checked(run, data, start, fetch.name)]


def _checked(run: Run, data: bytes, start: int, name: str) -> Iterator[Piece | LostRange]:
    """The messages of ``run``; ``data`` begins at byte ``start`` of the object."""
    view = memoryview(data)
    sound: list[Stored] = []
    for one in run.stretches:
        at = one.position - start
        if large_crc32(view[at : at + one.size]) == one.crc:
            sound.append(one)
            continue
        yield from _piece(run.wanted, sound, data, start)
        sound = []
        low, high = max(one.first, run.wanted.start), min(one.end, run.wanted.end)
        if low < high:
            why = f"damaged in the bucket, at byte {one.position} of object {name}"
            yield LostRange(run.wanted.queue, low, high, why)
    yield from _piece(run.wanted, sound, data, start)


def _piece(wanted: OffsetRange, stretches: Sequence[Stored], data: bytes, start: int) -> Iterator[Piece]:
    if not stretches:
        return
    first, last = stretches[0], stretches[-1]
    low, high = max(first.first, wanted.start), min(last.end, wanted.end)
    if low < high:
        found = data[first.position - start : last.position + last.size - start]
        starts = starts_in(found, [one.position - first.position for one in stretches])
        yield Piece(wanted._replace(start=low, end=high), Buffer(first.first, found, starts))


def starts_in(data: bytes, begins: Sequence[int]) -> Ints | None:
    """Where the records of ``data`` begin. ``begins``: the beginnings of stretches, at each of which a record begins.

    None: not known; or all records seem to have one size, and then `Records` finds the beginnings as fast.
    """
    size = int.from_bytes(data[:4], "big")
    if len(begins) < LEAST_AT_ONCE or len(data) % max(size, MIN_RECORD) == 0:
        return None
    starts, sizes = record_places(data, np.array(begins, np.int64))
    return starts if len(starts) and starts[-1] + sizes[-1] == len(data) else None
