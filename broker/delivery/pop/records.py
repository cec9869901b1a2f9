"""The records of the revive log: JSON with RocketMQ's short names, and some of our own. Pure.

A check point (tag "ck") says that messages of a queue were popped together: so startOffset, pt popTime, it
invisibleTime, d differences of the offsets to the first (without d: consecutive offsets), n their number, bm bits of
the acknowledged messages, t topic, c group, q queue, bn broker. Skylark's own: nx the position of the group after the
pop; rl 1 when the group continues at its committed offset from then on; od 1 for a pop in order, oc how often each
message was delivered before, vt when single messages become visible; of [so, pt] the check point from which this one
takes a message. rp 1 marks a check point that is written again.
An acknowledgement (tag "bAck"; Java also writes "ack" with ao for one): so, pt, t, c, q of its check point, aol offsets
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import orjson

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

CHECKPOINT, ACK, BATCH_ACK = b"ck", b"ack", b"bAck"
#: The position of a check point after which the group goes on at its committed offset.
RELEASED = -1
_NO_TIMES: Mapping[int, int] = {}


class Queue(NamedTuple):
    """One queue as one group consumes it."""

    group: str
    topic: str
    queue_id: int


class Key(NamedTuple):
    """The identity of a check point, which the handles of its messages contain."""

    queue: Queue
    start: int
    pop_ms: int


@lazy_dataclass(frozen=True, slots=True)
class PopCheckpoint:
    """A record about messages that were popped together. ``position`` is None when the pop does not move the group."""

    key: Key
    invisible_ms: int
    offsets: Sequence[int]
    position: int | None = None
    acked: int = 0
    is_ordered: bool = False
    #: How often each message was delivered before, by place.
    counts: tuple[int, ...] = ()
    #: By offset: when a message becomes visible, if its time differs from the other messages' time.
    visible_ms: Mapping[int, int] = field(default_factory=lambda: _NO_TIMES)
    replaces: Key | None = None
    is_again: bool = False

    @property
    def due_ms(self) -> int:
        """When the messages become visible, in ms since 1970."""
        return self.key.pop_ms + self.invisible_ms


@lazy_dataclass(frozen=True, slots=True)
class Ack:
    """Messages of a check point that are consumed, or that have come back as copies."""

    key: Key
    offsets: Sequence[int]


def encode(record: PopCheckpoint | Ack, broker_name: str) -> bytes:
    """The body of ``record``. ``broker_name``: the name of this broker, RocketMQ's field ``bn``."""
    (group, topic, queue_id), start, pop_ms = record.key
    fields: dict[str, Any] = {"so": start, "pt": pop_ms, "c": group, "t": topic, "q": queue_id, "bn": broker_name}
    if isinstance(record, Ack):
        fields["aol"] = list(record.offsets)
        return _encoded(fields)
    fields |= {"it": record.invisible_ms, "n": len(record.offsets), "bm": record.acked}
    if not isinstance(record.offsets, range):
        fields["d"] = [offset - start for offset in record.offsets]
    if record.position == RELEASED:
        fields["rl"] = 1
    elif record.position is not None:
        fields["nx"] = record.position
    if record.is_ordered:
        fields |= {"od": 1, "oc": record.counts}
    if record.visible_ms:
        fields["vt"] = list(record.visible_ms.items())
    if record.replaces is not None:
        fields["of"] = [record.replaces.start, record.replaces.pop_ms]
    if record.is_again:
        fields["rp"] = "1"
    return _encoded(fields)


def _encoded(fields: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(fields)
    except TypeError:
        # orjson takes integers of at most 64 bits; the acknowledged bits of a check point may be a longer integer.
        return json.dumps(fields, separators=(",", ":")).encode()


def decode(tag: bytes, body: bytes) -> PopCheckpoint | Ack:
    """The record with this tag and body. ProtocolError when it cannot be read."""
    try:
        fields = json.loads(body)
        queue = Queue(str(fields["c"]), str(fields["t"]), int(fields["q"]))
        key = Key(queue, int(fields["so"]), int(fields["pt"]))
        if tag == CHECKPOINT:
            return _checkpoint(key, fields)
        if tag in (ACK, BATCH_ACK):
            return Ack(key, [int(each) for each in fields.get("aol") or [fields["ao"]]])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"a record of the revive log cannot be read: {error!r}") from None
    raise ProtocolError(f"a record of the revive log has the tag {tag[:20]!r}")


def _checkpoint(key: Key, fields: Mapping[str, Any]) -> PopCheckpoint:
    count, start = int(fields["n"]), key.start
    differences = fields.get("d")
    if not 0 <= count <= 1_024:
        raise ValueError(f"{count} messages")
    offsets: Sequence[int] = range(start, start + count)
    if differences:
        offsets = tuple(start + int(each) for each in differences)
    of, position = fields.get("of"), RELEASED if fields.get("rl") else fields.get("nx")
    return PopCheckpoint(
        key,
        int(fields["it"]),
        offsets,
        None if position is None else int(position),
        int(fields.get("bm") or 0),
        bool(fields.get("od")),
        tuple(int(each) for each in fields.get("oc") or ()),
        {int(offset): int(due_ms) for offset, due_ms in fields.get("vt") or ()},
        None if of is None else Key(key.queue, int(of[0]), int(of[1])),
        bool(fields.get("rp") and fields["rp"] != "0"),
    )
