"""Counts gaps and disorder in a queue: pure, part by part, so that tasks count and the driver joins.

A queue's offsets must follow one another and its store times must not decrease. `Stretch` sums up consecutive messages;
`joined` puts two neighbours together. Invariant (property-tested): however a queue is cut, the sum is the same.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any


@dataclass(frozen=True)
class Stretch:
    """Consecutive messages of one queue."""

    first: int
    last: int
    messages: int
    missing: int
    gaps: int
    disordered: int
    first_ms: int
    last_ms: int


def stretch(offsets: Iterable[int], times_ms: Iterable[int]) -> Stretch | None:
    """The sum of these messages, in the order of the queue; None without any."""
    ones = (Stretch(offset, offset, 1, 0, 0, 0, at, at) for offset, at in zip(offsets, times_ms, strict=True))
    first = next(ones, None)
    return None if first is None else reduce(joined, ones, first)


def joined(left: Stretch, right: Stretch) -> Stretch:
    """The sum of ``left`` and ``right``, which follows ``left`` in the queue."""
    between = right.first - left.last - 1
    return Stretch(
        left.first,
        right.last,
        left.messages + right.messages,
        left.missing + right.missing + max(between, 0),
        left.gaps + right.gaps + (between > 0),
        # an offset that comes twice is disorder, too
        left.disordered + right.disordered + (between < 0 or right.first_ms < left.last_ms),
        left.first_ms,
        right.last_ms,
    )


@dataclass(frozen=True)
class QueueAudit:
    """One queue of the table; ``duplicates`` are messages whose unique key an earlier message of the topic has."""

    broker: str
    queue: int
    stretch: Stretch
    duplicates: int

    @property
    def is_clean(self) -> bool:
        return not (self.duplicates or self.stretch.gaps or self.stretch.disordered)

    def row(self) -> dict[str, Any]:
        """The cells of the queue's row by the names of columns."""
        return {"broker": self.broker, "queue": self.queue, **asdict(self.stretch), "duplicates": self.duplicates}


def audits(parts: Iterable[tuple[str, int, Stretch]], duplicates: dict[tuple[str, int], int]) -> list[QueueAudit]:
    """The table of all queues, from the parts that tasks have counted, in any order."""
    queues: dict[tuple[str, int], list[Stretch]] = {}
    for broker, queue, part in parts:
        queues.setdefault((broker, queue), []).append(part)
    return [
        QueueAudit(*queue, reduce(joined, sorted(found, key=lambda one: one.first)), duplicates.get(queue, 0))
        for queue, found in sorted(queues.items())
    ]


def audit_table(found: Iterable[QueueAudit]) -> str:
    """The table as text."""
    names = ("broker", "queue", "first", "last", "messages", "missing", "gaps", "disordered", "duplicates")
    rows = [names, *(tuple(str(one.row()[name]) for name in names) for one in found)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(names))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
