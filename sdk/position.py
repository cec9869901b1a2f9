"""`Position`: an offset, with the topic that it belongs to. `OffsetSpan`: the first and the next offset of a queue."""

from typing import NamedTuple


class OffsetSpan(NamedTuple):
    """The offsets that a queue has: from ``start`` up to, not including, ``end``."""

    start: int
    end: int


class Position(NamedTuple):
    """An offset of a queue. ``created_ms`` is the creation stamp of the queue's topic on its broker.

    A topic that is deleted and made again has another stamp: offsets of the first topic are invalid in the second.
    None: not known, as with RocketMQ's brokers and topics of older stores.
    """

    offset: int
    created_ms: int | None = None
