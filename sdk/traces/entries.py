r"""What producers and consumers note for the trace. Records are made of it later, when there is time. Pure.

An entry keeps as little as possible: no bodies, and no buffers of pulls. Each line that is made of it is a record and
the keys by which it is found: the message id and the message's keys.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mqcommon.message.properties import DELAY, KEYS, TAGS, find_property
from sdk.producer.result import StoredBatch
from sdk.traces.records import DELAYED_MESSAGE, HALF_MESSAGE, NO_VALUE, NORMAL_MESSAGE, PUB, SUB_AFTER, SUB_BEFORE

DEFAULT_REGION = "DefaultRegion"
# What an entry takes in memory for each message, beside the texts.
OVERHEAD_BYTES = 200
_UNIQ_KEY = b"UNIQ_KEY\x01"
_TAGS, _KEYS, _DELAY = TAGS.encode(), KEYS.encode(), DELAY.encode()
_NO_VALUE = NO_VALUE.encode()
# Message types by the property that only such messages have.
_TYPES = ((_DELAY, DELAYED_MESSAGE), (b"TRAN_MSG", HALF_MESSAGE))

Line = tuple[bytes, bytes]


class Sent:
    """A broker has answered a request that sent messages."""

    __slots__ = (
        "_body_sizes", "_cost_ms", "_group", "_host", "_offsets", "_properties", "_region", "_sent_ms", "_store_host",
        "_success", "_topic", "count", "size_bytes",
    )  # fmt: skip

    def __init__(
        self, batch: StoredBatch, group: str, region: str, store_host: str, sent_ms: int, cost_ms: int, *, success: bool
    ) -> None:
        rows = batch.rows
        self._properties = [row[2] for row in rows]
        self._body_sizes = [len(row[1]) for row in rows]
        self._offsets, self._host = batch.where.physical_offsets, batch.where.host
        self._topic, self._group, self._region, self._store_host = batch.queue.topic, group, region, store_host
        self._sent_ms, self._cost_ms, self._success = sent_ms, cost_ms, success
        self.count = len(rows)
        self.size_bytes = sum(map(len, self._properties)) + OVERHEAD_BYTES * len(rows)

    def lines(self) -> Iterator[Line]:
        """A Pub record for each message."""
        head = _fields(PUB, self._sent_ms, self._region, self._group, self._topic) + b"\x01"
        store_host, host, cost_ms = self._store_host.encode(), self._host.hex().upper().encode(), self._cost_ms
        success = b"true" if self._success else b"false"
        for properties, body_size, offset in zip(self._properties, self._body_sizes, self._offsets, strict=True):
            at = properties.rindex(_UNIQ_KEY)
            msg_id = properties[at + 9 : -1]
            tags = keys = _NO_VALUE
            kind, found = NORMAL_MESSAGE, msg_id
            if at:
                tags = find_property(properties, _TAGS) or _NO_VALUE
                if own := find_property(properties, _KEYS):
                    keys, found = own, b"%s %s" % (msg_id, own)
                kind = next((number for name, number in _TYPES if find_property(properties, name)), NORMAL_MESSAGE)
            yield (
                b"%s%s\x01%s\x01%s\x01%s\x01%d\x01%d\x01%d\x01%s%016X\x01%s\x02"
                % (head, msg_id, tags, keys, store_host, body_size, cost_ms, kind, host, offset, success),
                found,
            )


class Taken(NamedTuple):
    """A message that a handler got."""

    msg_id: str
    keys: str
    retry_times: int
    region: str


class Consuming:
    """A handler got messages."""

    __slots__ = ("_began_ms", "_group", "_request_id", "_taken", "count", "size_bytes")

    def __init__(self, taken: Sequence[Taken], group: str, request_id: str, began_ms: int) -> None:
        self._taken, self._group, self._request_id, self._began_ms = taken, group, request_id, began_ms
        self.count, self.size_bytes = len(taken), _size_of(taken)

    def lines(self) -> Iterator[Line]:
        """A SubBefore record for each message."""
        for msg_id, keys, retry_times, region in self._taken:
            record = _fields(
                SUB_BEFORE, self._began_ms, region, self._group, self._request_id, msg_id, retry_times, keys or NO_VALUE
            )
            yield record + b"\x02", _found_by(msg_id, keys)


class Consumed:
    """A handler has ended. The time that it took is divided among its messages."""

    __slots__ = ("_code", "_cost_ms", "_ended_ms", "_group", "_request_id", "_taken", "count", "size_bytes")

    def __init__(
        self, taken: Sequence[Taken], group: str, request_id: str, ended_ms: int, took_ms: int, code: int
    ) -> None:
        self._taken, self._group, self._request_id, self._ended_ms = taken, group, request_id, ended_ms
        self._cost_ms, self._code = took_ms // len(taken), code
        self.count, self.size_bytes = len(taken), _size_of(taken)

    def lines(self) -> Iterator[Line]:
        """A SubAfter record for each message."""
        success = "false" if self._code else "true"
        for msg_id, keys, _, _ in self._taken:
            record = _fields(
                SUB_AFTER, self._request_id, msg_id, self._cost_ms, success, keys or NO_VALUE, self._code,
                self._ended_ms, self._group,
            )  # fmt: skip
            yield record + b"\x02", _found_by(msg_id, keys)


#: Something that was noted, about ``count`` messages.
Entry = Sent | Consuming | Consumed


def _fields(*values: object) -> bytes:
    return "\x01".join(map(str, values)).encode()


def _found_by(msg_id: str, keys: str) -> bytes:
    return (f"{msg_id} {keys}" if keys else msg_id).encode()


def _size_of(taken: Sequence[Taken]) -> int:
    return sum([len(each.keys) + OVERHEAD_BYTES for each in taken])
