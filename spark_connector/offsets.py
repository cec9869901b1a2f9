"""The ranges of offsets to read from each queue: pure arithmetic, without brokers or Spark.

An offset is one message; a range ``[start, end)`` has ``end - start`` of them. Messages that were asked for but do not
exist (any more, or yet) are reported as a `LostRange`, never left out silently.
Invariants (property-tested): the ranges to read and the lost ranges do not overlap and together are exactly the asked
ranges; splitting keeps every offset in exactly one part.
"""

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from skylark.mqcommon.errors import SkylarkError, UserError
from skylark.mqcommon.message.queue import MessageQueue

EARLIEST = -2
LATEST = -1
COMMITTED = -3
# The offsets that a user gives: earliest or latest for all queues, or an offset, -2 or -1 for each queue.
Wanted = int | Mapping[MessageQueue, int]


class QueueBounds(NamedTuple):
    """The offsets of a queue: from ``minimum`` up to, not including, ``maximum``. ``created_ms``: see `OffsetRange`."""

    minimum: int
    maximum: int
    created_ms: int | None = None


class OffsetRange(NamedTuple):
    """Messages of a queue from ``start`` up to, not including, ``end``.

    ``created_ms`` is the creation stamp of their topic: a topic that is deleted and made again has another stamp. None:
    not known.
    """

    queue: MessageQueue
    start: int
    end: int
    created_ms: int | None = None


#: Why messages of a deleted topic are lost.
MADE_AGAIN = "the topic was deleted and made again"


class LostRange(NamedTuple):
    """Messages that were asked for and do not exist. If ``end`` is ``start``, their number is unknown."""

    queue: MessageQueue
    start: int
    end: int
    reason: str


class DataLost(SkylarkError):
    """Messages that should be read do not exist; the text has a table of them."""

    def __init__(self, lost: Sequence[LostRange]) -> None:
        super().__init__(lost)
        self.lost = tuple(lost)

    def __str__(self) -> str:
        count = sum(one.end - one.start for one in self.lost)
        are_counted = all(one.start < one.end for one in self.lost)
        return (
            f"{count if are_counted else 'some'} messages that should be read do not exist:\n{lost_table(self.lost)}\n"
            "Set option onDataLoss to skip (or failOnDataLoss to false) to read the others and to log these, or to"
            " report to have them in a table, too."
        )


def parse_offsets(text: str, option: str, words: Mapping[str, int]) -> Wanted:
    """``earliest``, ``latest`` or JSON ``{"topic": {"broker": {"0": 23, "1": -1}}}``; -2 is earliest, -1 latest."""
    word = text.strip().lower()
    if word in words:
        return words[word]
    expected = f'give {", ".join(words)} or JSON like {{"topic":{{"broker":{{"0":23,"1":-1}}}}}}'
    try:
        tree = json.loads(text)
    except ValueError:
        raise UserError(f"option {option}: {text!r} cannot be read; {expected}") from None
    wanted: dict[MessageQueue, int] = {}
    try:
        for topic, brokers in tree.items():
            for broker, queues in brokers.items():
                for queue, offset in queues.items():
                    # bool is an int, too, and true is no offset.
                    if type(offset) is not int or offset < EARLIEST:
                        raise ValueError
                    wanted[MessageQueue(topic, broker, int(queue))] = offset
    except (AttributeError, ValueError):
        raise UserError(f"option {option}: {text!r} has the wrong structure; {expected}") from None
    unusable = sorted(set(wanted.values()) & {EARLIEST, LATEST} - set(words.values()))
    if unusable:
        raise UserError(f"option {option}: offset {unusable[0]} is not allowed; {expected}")
    return wanted


def resolve(wanted: Wanted, bounds: Mapping[MessageQueue, QueueBounds], option: str) -> dict[MessageQueue, int]:
    """The offset of every queue, -2 and -1 replaced by its bounds. UserError when a queue is unknown or missing."""
    if isinstance(wanted, int):
        return {queue: _absolute(wanted, bounds[queue]) for queue in bounds}
    missing = sorted(set(bounds) - set(wanted))
    if missing:
        raise UserError(
            f"option {option} gives no offset for {_names(missing)}; every queue needs one (-2 earliest, -1 latest)"
        )
    unknown = sorted(set(wanted) - set(bounds))
    if unknown:
        raise UserError(f"option {option} names {_names(unknown)}, which no broker has; queues: {_names(bounds)}")
    return {queue: _absolute(wanted[queue], bounds[queue]) for queue in bounds}


def within_bounds(
    starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, QueueBounds]
) -> tuple[list[OffsetRange], list[LostRange]]:
    """The ranges to read and the lost ranges of ``[start, end)`` of every queue, without empty ones."""
    ranges: list[OffsetRange] = []
    lost: list[LostRange] = []
    for queue, (low, high, created_ms) in bounds.items():
        start, end = starts[queue], ends[queue]
        # Messages may be deleted at the front, missing at the end, or both: each of the two is a row of its own.
        if start < min(end, low):
            lost.append(LostRange(queue, start, min(end, low), f"deleted: the queue starts at {low}"))
        first, last = max(start, low), min(end, high)
        if first < last:
            ranges.append(OffsetRange(queue, first, last, created_ms))
        if start > high and start >= end:
            lost.append(LostRange(queue, high, start, f"missing: the queue ends at {high}, before the start"))
        elif max(start, high) < end:
            lost.append(LostRange(queue, max(start, high), end, f"missing: the queue ends at {high}"))
    return ranges, lost


def check_order(wanted_start: Wanted, wanted_end: Wanted) -> None:
    """Raise UserError when a given start is after the given end of the same queue."""
    if isinstance(wanted_start, int) or isinstance(wanted_end, int):
        return
    for queue, start in wanted_start.items():
        end = wanted_end.get(queue, LATEST)
        if 0 <= end < start:
            raise UserError(f"startingOffsets {start} is after endingOffsets {end} of {_names([queue])}")


def split(ranges: Sequence[OffsetRange], min_partitions: int, max_records: int) -> list[OffsetRange]:
    """Split ``ranges`` into at least ``min_partitions`` parts (given enough messages) of at most ``max_records``.

    0 means no such limit. The sizes of the parts of a range differ by at most one message.
    """
    sizes = [one.end - one.start for one in ranges]
    # Rounded up, so that no part has more than ``max_records``.
    parts = [-(-size // max_records) if max_records else 1 for size in sizes]
    # the range with the largest parts gets one more part, until there are enough
    largest = [(-size / part, at) for at, (size, part) in enumerate(zip(sizes, parts, strict=True)) if part < size]
    heapq.heapify(largest)
    missing = min_partitions - sum(parts)
    while missing > 0 and largest:
        _, at = heapq.heappop(largest)
        parts[at] += 1
        missing -= 1
        if parts[at] < sizes[at]:
            heapq.heappush(largest, (-sizes[at] / parts[at], at))
    return [part for one, count in zip(ranges, parts, strict=True) for part in _even(one, count)]


def spread(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Order ``ranges`` so that neighbours are on different brokers, and tasks load all brokers at once."""
    turns: dict[str, int] = {}
    keyed = []
    for one in ranges:
        turn = turns.get(one.queue.broker_name, 0)
        turns[one.queue.broker_name] = turn + 1
        keyed.append((turn, one))
    return [one for _, one in sorted(keyed)]


def lost_table(lost: Iterable[LostRange]) -> str:
    """A table of the lost ranges, one per line."""
    head = ("topic", "broker", "queue", "from", "to", "messages", "reason")
    rows = [head] + [(*map(str, (*one.queue, one.start)), *_end_and_count(one), one.reason) for one in sorted(lost)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _end_and_count(one: LostRange) -> tuple[str, str]:
    return (str(one.end - 1), str(one.end - one.start)) if one.start < one.end else ("?", "?")


def _absolute(offset: int, bounds: QueueBounds) -> int:
    return {EARLIEST: bounds.minimum, LATEST: bounds.maximum}.get(offset, offset)


def _even(one: OffsetRange, count: int) -> list[OffsetRange]:
    size = one.end - one.start
    # Rounding each edge down from the whole, not from the last edge, keeps the parts within one message of each other.
    edges = [one.start + size * part // count for part in range(count + 1)]
    return [one._replace(start=low, end=high) for low, high in pairwise(edges)]


def _names(queues: Iterable[MessageQueue]) -> str:
    return ", ".join(f"{topic} {broker} {queue}" for topic, broker, queue in queues)
