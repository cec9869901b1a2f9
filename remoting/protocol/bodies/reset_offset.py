"""Offsets that a consumer is told to go on from (220), and those that it has (221, 223).

Brokers send the offsets of 220 as a map; to C++ clients, which cannot read maps with object keys, as a list.
"""

from dataclasses import dataclass
from typing import Any, Final

from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import LONG, Kind, list_of, map_by_queue, map_of, read_queue
from remoting.protocol.scalars import read_long

_OFFSETS: Final = map_by_queue(LONG)


def _read_pair(value: Any) -> tuple[MessageQueue, int]:
    if type(value) is not dict:
        raise ValueError("not an object")
    return read_queue(value), read_long(value.get("offset"))


def _write_pair(pair: tuple[MessageQueue, int]) -> dict[str, Any]:
    queue, offset = pair
    return {"brokerName": queue.broker_name, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic}


_PAIRS: Final = list_of(Kind(_read_pair, _write_pair))


def _read_either(value: Any) -> dict[MessageQueue, int]:
    found: dict[MessageQueue, int] = dict(_PAIRS.read(value)) if type(value) is list else _OFFSETS.read(value)
    return found


@dataclass(slots=True)
class ResetOffsetBody(Body):
    """The offsets of 220 and of the answer to 222; both forms are read."""

    offset_table: dict[MessageQueue, int] = member(Kind(_read_either, _OFFSETS.write, dict))


@dataclass(slots=True)
class ResetOffsetBodyForC(Body):
    """The form of 220 for C++ clients."""

    offset_table: list[tuple[MessageQueue, int]] = member(_PAIRS)


@dataclass(slots=True)
class GetConsumerStatusBody(Body):
    """The offsets of one consumer (answer to 221), or those of several by client id (answer to 223)."""

    message_queue_table: dict[MessageQueue, int] | None = member(_OFFSETS, None)
    consumer_table: dict[str, dict[MessageQueue, int]] | None = member(map_of(_OFFSETS), None)
