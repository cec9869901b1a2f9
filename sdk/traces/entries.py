r"""Entries that producers and consumers make for the trace; records are made of them later, when there is time. Pure.

An entry keeps as little as possible: no bodies, and no buffers of pulls. Each line made of an entry is a record and the
keys by which it is found: the message id and the message's keys.
"""

from collections.abc import Sequence
from typing import NamedTuple

from skylark.mqcommon.message.properties import DELAY, KEYS, TAGS, find_property
from skylark.sdk.producer.result import StoredBatch
from skylark.sdk.traces.records import (
    COMMIT_MESSAGE,
    DELAYED_MESSAGE,
    END_TRANSACTION,
    HALF_MESSAGE,
    NO_VALUE,
    NORMAL_MESSAGE,
    PUB,
    RECALL,
    SUB_AFTER,
    SUB_BEFORE,
)

DEFAULT_REGION = "DefaultRegion"
# The memory that an entry takes for each message, besides the texts.
OVERHEAD_BYTES = 200
_UNIQ_KEY = b"UNIQ_KEY\x01"
_TAGS, _KEYS, _DELAY = TAGS.encode(), KEYS.encode(), DELAY.encode()
_NO_VALUE = NO_VALUE.encode()
# Message types by the property that only such messages have.
_TYPES = ((_DELAY, DELAYED_MESSAGE), (b"TRAN_MSG", HALF_MESSAGE))


class TraceLines(NamedTuple):
    """Records, and the keys by which each is found."""

    records: list[bytes]
    keys: list[bytes]


class Sent:
    """The entry of a request that sent messages, which a broker has answered."""

    __slots__ = (
        "_body_sizes", "_cost_ms", "_group", "_host", "_offsets", "_properties", "_region", "_sent_ms", "_store_host",
        "_success", "_topic", "count", "size_bytes",
    )  # fmt: skip

    def __init__(
        self,
        batch: StoredBatch,
        group: str,
        region: str,
        store_host: str,
        sent_ms: int,
        cost_ms: int,
        plain_bytes: int | None = None,
        *,
        success: bool,
    ) -> None:
        rows = batch.rows
        self._properties = [row[2] for row in rows]
        # A message that was compressed is alone.
        self._body_sizes = [len(row[1]) for row in rows] if plain_bytes is None else [plain_bytes]
        self._offsets, self._host = batch.where.physical_offsets, batch.where.host
        self._topic, self._group, self._region, self._store_host = batch.queue.topic, group, region, store_host
        self._sent_ms, self._cost_ms, self._success = sent_ms, cost_ms, success
        self.count = len(rows)
        self.size_bytes = sum(map(len, self._properties)) + OVERHEAD_BYTES * len(rows)

    def lines(self) -> TraceLines:
        """A Pub record for each message."""
        head = _fields(PUB, self._sent_ms, self._region, self._group, self._topic) + b"\x01"
        host = self._host.hex().upper().encode()
        end = b"\x01true\x02" if self._success else b"\x01false\x02"
        records: list[bytes] = []
        keys: list[bytes] = []
        # By body size: the part between the message id and the offset, in a record without tags and keys.
        middles: dict[int, bytes] = {}
        for properties, body_size, offset in zip(self._properties, self._body_sizes, self._offsets, strict=True):
            at = properties.rindex(_UNIQ_KEY)
            msg_id = properties[at + 9 : -1]
            own_keys: bytes | None = None
            if at:
                tags, own_keys = find_property(properties, _TAGS), find_property(properties, _KEYS)
                kind = next((number for name, number in _TYPES if find_property(properties, name)), NORMAL_MESSAGE)
                middle = self._middle(tags or _NO_VALUE, own_keys or _NO_VALUE, body_size, kind) + host
            elif (known := middles.get(body_size)) is not None:
                middle = known
            else:
                middle = middles[body_size] = self._middle(_NO_VALUE, _NO_VALUE, body_size, NORMAL_MESSAGE) + host
            records.append(b"%s%s%s%016X%s" % (head, msg_id, middle, offset, end))
            keys.append(b"%s %s" % (msg_id, own_keys) if own_keys else msg_id)
        return TraceLines(records, keys)

    def _middle(self, tags: bytes, keys: bytes, body_size: int, kind: int) -> bytes:
        store_host = self._store_host.encode()
        return b"\x01%s\x01%s\x01%s\x01%d\x01%d\x01%d\x01" % (tags, keys, store_host, body_size, self._cost_ms, kind)


class ConsumedMessage(NamedTuple):
    """A message that a handler got."""

    msg_id: str
    keys: str
    retry_times: int
    region: str


class Consuming:
    """The entry of a handler's beginning, with the messages that it got."""

    __slots__ = ("_began_ms", "_group", "_request_id", "_taken", "count", "size_bytes")

    def __init__(self, taken: Sequence[ConsumedMessage], group: str, request_id: str, began_ms: int) -> None:
        self._taken, self._group, self._request_id, self._began_ms = taken, group, request_id, began_ms
        self.count, self.size_bytes = len(taken), _size_of(taken)

    def lines(self) -> TraceLines:
        """A SubBefore record for each message."""
        records = [
            _fields(SUB_BEFORE, self._began_ms, region, self._group, self._request_id, msg_id, times, keys or NO_VALUE)
            for msg_id, keys, times, region in self._taken
        ]
        return TraceLines([record + b"\x02" for record in records], _found_by(self._taken))


class Consumed:
    """The entry of a handler's end. The time that it took is divided among its messages."""

    __slots__ = ("_code", "_cost_ms", "_ended_ms", "_group", "_request_id", "_taken", "count", "size_bytes")

    def __init__(
        self, taken: Sequence[ConsumedMessage], group: str, request_id: str, ended_ms: int, took_ms: int, code: int
    ) -> None:
        self._taken, self._group, self._request_id, self._ended_ms = taken, group, request_id, ended_ms
        self._cost_ms, self._code = took_ms // len(taken), code
        self.count, self.size_bytes = len(taken), _size_of(taken)

    def lines(self) -> TraceLines:
        """A SubAfter record for each message."""
        success = "false" if self._code else "true"
        records = [
            _fields(
                SUB_AFTER,
                self._request_id,
                each.msg_id,
                self._cost_ms,
                success,
                each.keys or NO_VALUE,
                self._code,
                self._ended_ms,
                self._group,
            )
            for each in self._taken
        ]
        return TraceLines([record + b"\x02" for record in records], _found_by(self._taken))


class EndedTransaction:
    """The entry of a transaction's end, sent by a producer: ``state`` is RocketMQ's name of that end."""

    __slots__ = ("_taken", "_values", "count", "size_bytes")

    def __init__(
        self,
        taken: ConsumedMessage,
        tags: str,
        group: str,
        topic: str,
        store_host: str,
        state: str,
        now_ms: int,
        *,
        from_check: bool,
    ) -> None:
        self._taken = taken
        self._values = (
            END_TRANSACTION,
            now_ms,
            taken.region,
            group,
            topic,
            taken.msg_id,
            tags or NO_VALUE,
            taken.keys or NO_VALUE,
            store_host,
            COMMIT_MESSAGE,
            taken.msg_id,
            state,
            "true" if from_check else "false",
        )
        self.count, self.size_bytes = 1, _size_of([taken]) + len(tags)

    def lines(self) -> TraceLines:
        """An EndTransaction record."""
        return TraceLines([_fields(*self._values) + b"\x02"], _found_by([self._taken]))


class Recalled:
    """The entry of a recall, which a broker has answered."""

    __slots__ = ("_values", "count", "size_bytes")

    def __init__(self, msg_id: str, group: str, topic: str, now_ms: int, *, success: bool) -> None:
        self._values = (RECALL, now_ms, DEFAULT_REGION, group, topic, msg_id, "true" if success else "false")
        self.count, self.size_bytes = 1, OVERHEAD_BYTES

    def lines(self) -> TraceLines:
        """A Recall record."""
        return TraceLines([_fields(*self._values) + b"\x02"], [self._values[5].encode()])


#: One entry for the trace, about ``count`` messages.
Entry = Sent | Consuming | Consumed | EndedTransaction | Recalled


def _fields(*values: object) -> bytes:
    return "\x01".join(map(str, values)).encode()


def _found_by(taken: Sequence[ConsumedMessage]) -> list[bytes]:
    return [(f"{each.msg_id} {each.keys}" if each.keys else each.msg_id).encode() for each in taken]


def _size_of(taken: Sequence[ConsumedMessage]) -> int:
    return sum([len(each.keys) + OVERHEAD_BYTES for each in taken])
