"""Acknowledgements of many messages at once (200151)."""

import binascii
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.kinds import INT, LONG, TEXT, Kind, body_of, list_of
from remoting.protocol.scalars import read_text


def _read_bits(value: Any) -> int:
    """Java's BitSet as fastjson writes it: base64 of its bytes, the lowest first; here as the bits of an int."""
    try:
        return int.from_bytes(b64decode(read_text(value), validate=True), "little")
    except binascii.Error:
        raise ValueError("not base64") from None


def _write_bits(bits: int) -> str:
    return b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


BITS = Kind(_read_bits, _write_bits, int)


@dataclass(slots=True)
class BatchAck(Body):
    """Messages of one check point. Bit n of ``bits`` is the message at ``start_offset`` + n.

    ``retry``: "0", or the kind of retry topic of ``topic`` that the messages were popped from.
    """

    bits: int = member(BITS, 0, wire="b")
    consumer_group: str = member(TEXT, "", wire="c")
    invisible_time: int = member(LONG, 0, wire="it")
    pop_time: int = member(LONG, 0, wire="pt")
    queue_id: int = member(INT, 0, wire="q")
    retry: str = member(TEXT, "0", wire="r")
    revive_queue_id: int = member(INT, 0, wire="rq")
    start_offset: int = member(LONG, 0, wire="so")
    topic: str = member(TEXT, "", wire="t")


@dataclass(slots=True)
class BatchAckMessageRequestBody(Body):
    """200151."""

    acks: list[BatchAck] = member(list_of(body_of(BatchAck)))
    broker_name: str = member(TEXT, "")
