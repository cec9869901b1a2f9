"""What a copy of a topic decides: which queue goes where, where a copy goes on, whether it is right.

Every copied message has a property that names its origin. So a copy that was interrupted finds in the target queue
itself what is there already, and the progress directory needs only what was planned. The digest of a queue covers
keys, properties and bodies in their order, and is made alike on both sides.
Invariant (property-tested): however often a copy is interrupted, the target gets every message once and in order.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple
from zlib import crc32

from mqcommon.errors import UserError
from mqcommon.message.properties import DELAY, UNIQ_KEY, encode_properties
from mqcommon.message.queue import MessageQueue

ORIGIN = "COPY_ORIGIN"
# Written by brokers and clients for one delivery; in a copy they would delay a message again, or make it a transaction.
_NOT_COPIED = frozenset(
    {
        *(UNIQ_KEY, DELAY, ORIGIN, "CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT", "MIN_OFFSET", "MAX_OFFSET"),
        *("TRAN_MSG", "PGROUP", "__transactionId__", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"),
        *("TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "__CRC32#", "ARRIVE_TIME"),
        *("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"),
    }
)


class Origin(NamedTuple):
    """Where a copied message came from."""

    broker: str
    queue_id: int
    offset: int
    born_ms: int

    def text(self) -> str:
        return f"{self.broker}:{self.queue_id}:{self.offset}:{self.born_ms}"


class Digest(NamedTuple):
    """How many messages, and the CRC of all of them in their order."""

    messages: int = 0
    crc: int = 0

    def add(self, key: str, properties: Mapping[str, str], body: bytes, flag: int) -> "Digest":
        """With one more message."""
        head = f"{key}\x02{encode_properties(copied_properties(properties))}\x02{flag}\x02{len(body)}\x02"
        return Digest(self.messages + 1, crc32(body, crc32(head.encode(), self.crc)))


@dataclass(frozen=True)
class QueueCopy:
    """One queue to copy: offsets ``[start, end)`` of the source, to the target queue from ``target_start`` on."""

    source: MessageQueue
    start: int
    end: int
    target: MessageQueue
    target_start: int


@dataclass(frozen=True)
class QueueResult:
    """One queue that was copied and compared."""

    source: str
    target: str
    copied: int
    source_count: int
    target_count: int
    source_crc: int
    target_crc: int

    @property
    def is_right(self) -> bool:
        return (self.source_count, self.source_crc) == (self.target_count, self.target_crc)


def copied_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that a copy keeps: the user's, tags and keys among them."""
    return {name: value for name, value in properties.items() if name not in _NOT_COPIED}


def origin_of(properties: Mapping[str, str]) -> Origin | None:
    """Where a message was copied from; None: it is not a copy."""
    parts = properties.get(ORIGIN, "").rsplit(":", 3)
    if len(parts) != 4 or not all(part.isdecimal() for part in parts[1:]):
        return None
    return Origin(parts[0], int(parts[1]), int(parts[2]), int(parts[3]))


def pair(sources: Iterable[MessageQueue], targets: Iterable[MessageQueue]) -> dict[MessageQueue, MessageQueue]:
    """A target queue of its own for each source queue; UserError when there are too few."""
    ours, theirs = sorted(sources), sorted(targets)
    if len(theirs) < len(ours):
        raise UserError(
            f"the source has {len(ours)} queues, the target {len(theirs)}: order can only be kept with as many; create"
            " the target topic with more (mqadmin updateTopic -r N -w N)"
        )
    return dict(zip(ours, theirs, strict=False))


def goes_on_at(copy: QueueCopy, found: Iterable[Origin | None]) -> int:
    """The source offset of the first message that is missing, by the origins in the target queue."""
    ours = (o.offset + 1 for o in found if o is not None and o[:2] == (copy.source.broker_name, copy.source.queue_id))
    return max(copy.start, max((offset for offset in ours if offset <= copy.end), default=copy.start))


def plan_text(what: Mapping[str, str], copies: Sequence[QueueCopy]) -> str:
    """The plan as JSON, for the progress directory."""
    return json.dumps({"v": 1, **what, "queues": [asdict(copy) for copy in copies]}, indent=1)


def read_plan(text: str, what: Mapping[str, str]) -> list[QueueCopy]:
    """The plan of `plan_text`; UserError when it is of another copy."""
    try:
        tree = json.loads(text)
        before = {name: tree[name] for name in what}
        copies = [
            QueueCopy(
                MessageQueue(*one["source"]),
                one["start"],
                one["end"],
                MessageQueue(*one["target"]),
                one["target_start"],
            )
            for one in tree["queues"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"the plan in the progress directory cannot be read: {error!r}; choose an empty one") from None
    if before != dict(what):
        changed = ", ".join(f"{name} {before[name]}" for name in what if before[name] != what[name])
        raise UserError(f"the progress directory is of another copy ({changed}); give each copy a directory of its own")
    return copies
