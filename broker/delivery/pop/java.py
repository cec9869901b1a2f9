"""Check points and acknowledgements in a Java broker's form, to take over and to hand over. Pure.

In RocketMQ they are timed messages: they wait in rmq_sys_wheel_timer with REAL_TOPIC, the revive topic, and REAL_QID.
When they are due they are moved to that queue of the revive topic: a check point one second before its messages are
visible, an acknowledgement when they are. Each revive queue is read up to the first check point that is not due yet. So
the unacknowledged pops are in the revive queues after the offset of CID_RMQ_SYS_REVIVE_GROUP, or still wait in the
timer's topic. All of RocketMQ's records have TIMER_DELIVER_MS, which the records of this broker do not have.
Neighbours: java_takeover.py (takes over), commands/json_metadata.py (hands over).
"""

import json
from collections.abc import Iterable

from skylark.broker.delivery.pop.records import CHECKPOINT, Ack, Key, PopCheckpoint, decode
from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.properties import find_property

_DELIVER = b"TIMER_DELIVER_MS"
#: How long before its messages become visible a check point is due.
EARLIER_MS = 1_000
# RocketMQ's bits are in a signed 32-bit integer.
_SIGN, _WORD = 1 << 31, 1 << 32


class JavaPops:
    """The records of a Java broker's pops: check points and acknowledgements, added in any order.

    Check points of another broker than ``broker_name`` are left out.
    """

    def __init__(self, broker_name: str) -> None:
        self._broker_name = broker_name
        self._checkpoints: dict[Key, PopCheckpoint] = {}
        self.acks: dict[Key, dict[int, None]] = {}
        #: Check points that must not be taken over: this broker knows them already, or the Java broker has ended them.
        self.known: set[Key] = set()
        #: How many check points of other brokers were left out, and the name of the last such broker.
        self.others, self.other_name = 0, ""

    def is_own(self, tag: bytes, body: bytes) -> bool:
        """Whether the record concerns messages of this broker. RocketMQ's brokers act for other brokers, too."""
        if tag != CHECKPOINT:
            return True
        name = broker_of(body)
        if name in ("", self._broker_name):
            return True
        self.others += 1
        self.other_name = name
        return False

    def add(self, tag: bytes, body: bytes) -> None:
        """Add a record. ProtocolError when it cannot be read."""
        if not self.is_own(tag, body):
            return
        record = decode(tag, body)
        if isinstance(record, Ack):
            self.acks.setdefault(record.key, {}).update(dict.fromkeys(record.offsets))
        else:
            self._checkpoints[record.key] = record

    def open(self) -> list[PopCheckpoint]:
        """The check points to take over that have unacknowledged messages, in the order of their times."""
        found = [self._acked(each) for each in self._checkpoints.values() if each.key not in self.known]
        return sorted((each for each in found if _left(each)), key=lambda each: each.due_ms)

    def _acked(self, checkpoint: PopCheckpoint) -> PopCheckpoint:
        acks = self.acks.get(checkpoint.key, {})
        bits = sum(1 << place for place, offset in enumerate(checkpoint.offsets) if offset in acks)
        key, acked = checkpoint.key, checkpoint.acked | bits
        return PopCheckpoint(
            key, checkpoint.invisible_ms, checkpoint.offsets, None, acked, is_again=checkpoint.is_again
        )


def is_from_java(properties: bytes) -> bool:
    """Whether a record of the revive log has these properties because a Java broker wrote it."""
    return find_property(properties, _DELIVER) is not None


def as_timed(checkpoint: PopCheckpoint, broker_name: str, topic: str, precision_ms: int) -> tuple[bytes, bytes]:
    """The body and the properties of the check point as a timed message for queue 0 of ``topic`` in a Java broker.

    ``broker_name``: the name of that broker. ``precision_ms``: the distance between two slots of its timer.
    """
    (group, name, queue_id), start, pop_ms = checkpoint.key
    bits = checkpoint.acked % _WORD
    body = {
        "bm": bits - _WORD if bits & _SIGN else bits,
        "bn": broker_name,
        "c": group,
        "d": [offset - start for offset in checkpoint.offsets],
        "it": checkpoint.invisible_ms,
        "n": len(checkpoint.offsets),
        "pt": pop_ms,
        "q": queue_id,
        "ro": 0,
        "so": start,
        "t": name,
    }
    due_ms = checkpoint.due_ms - EARLIER_MS
    properties = {
        "TAGS": CHECKPOINT.decode(),
        _DELIVER.decode(): str(due_ms),
        "UNIQ_KEY": f"{name}@{queue_id}@{start}@{group}@{pop_ms}@{broker_name}@{CHECKPOINT.decode()}",
        "TIMER_OUT_MS": str((due_ms - 1) // precision_ms * precision_ms),
        "REAL_TOPIC": topic,
        "REAL_QID": "0",
    }
    text = "".join([f"{key}\x01{value}\x02" for key, value in properties.items()])
    return json.dumps(body, separators=(",", ":")).encode(), text.encode()


def messages_of(checkpoints: Iterable[PopCheckpoint]) -> int:
    """How many unacknowledged messages the check points have."""
    return sum(_left(each).bit_count() for each in checkpoints)


def _left(checkpoint: PopCheckpoint) -> int:
    return ((1 << len(checkpoint.offsets)) - 1) & ~checkpoint.acked


def broker_of(body: bytes) -> str:
    """The broker that has a check point's messages; "" when ``body`` does not say. ProtocolError if unreadable."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a record of the revive log cannot be read: {error!r}") from None
    return str(fields.get("bn") or "") if isinstance(fields, dict) else ""
