"""Encodes send requests and decodes their answers."""

import struct
from collections.abc import Iterator, Sequence
from typing import overload

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.batch import decode_batch, decode_offsets, encode_batch
from skylark.mqcommon.message.ids import split_offset_msg_id
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.sends import DEFERRED_BATCHES, ONLY_IF_SAFE, SEND_BATCH_MESSAGE, SEND_MESSAGE_V2

AUTO_CREATE_TOPIC_QUEUES = 4
DEFAULT_TOPIC = "TBW102"

Row = tuple[int, bytes, bytes]


class EncodedRows(Sequence[Row]):
    """Rows that are encoded already, as the body of a batch send; a row is decoded on access.

    The rows' unique keys are ``key_head`` and a number from ``first_key`` on, as `UniqueKeys.block` makes them.
    """

    __slots__ = ("_count", "_first_key", "_key_head", "body")

    def __init__(self, body: bytes, count: int, key_head: bytes, first_key: int) -> None:
        #: None once the rows are stored: a result needs only their unique keys.
        self.body: bytes | None = body
        self._count = count
        self._key_head = key_head
        self._first_key = first_key

    def drop_bodies(self) -> None:
        """Drop the bodies of the rows, which are stored, and keep their unique keys."""
        self.body = None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Row]:
        if self.body is not None:
            return iter(decode_batch(self.body)[0])
        return map(self._key_alone, range(self._count))

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if self.body is None and isinstance(index, int):
            return self._key_alone(range(self._count)[index])
        return list(self)[index]

    def _key_alone(self, number: int) -> Row:
        return 0, b"", b"%s%04X\x02" % (self._key_head, self._first_key + number & 0xFFFF)


def unique_key(row: Row) -> str:
    """The unique key in a row's properties; it is the last property of its name."""
    properties = row[2]
    return properties[properties.rindex(b"UNIQ_KEY\x01") + 9 : -1].decode()


def send_request(
    group: str,
    queue: MessageQueue,
    rows: Sequence[Row],
    born_timestamp: int,
    sys_flag: int = 0,
    *,
    has_deferred: bool = False,
    only_if_safe: bool = False,
) -> Command:
    """The request to store (flag, body, encoded properties) rows in one queue, as a batch if there are several.

    ``has_deferred``: some rows are delivered later; only brokers with `DEFERRED_BATCHES` take such rows in batches.
    ``only_if_safe``: see `ONLY_IF_SAFE`.
    """
    batch = len(rows) > 1
    flag, body, properties = (0, _batch_body(rows), b"") if batch else rows[0]
    ext = {
        "a": group,
        "b": queue.topic,
        "c": DEFAULT_TOPIC,
        "d": AUTO_CREATE_TOPIC_QUEUES,
        "e": queue.queue_id,
        "f": sys_flag,
        "g": born_timestamp,
        "h": flag,
        "i": properties.decode(),
        "j": 0,
        "k": False,
        "m": batch,
        "n": queue.broker_name,
    }
    if has_deferred and batch:
        ext[DEFERRED_BATCHES] = True
    if only_if_safe:
        ext[ONLY_IF_SAFE] = True
    return Command(SEND_BATCH_MESSAGE.code if batch else SEND_MESSAGE_V2.code, ext, body)


def _batch_body(rows: Sequence[Row]) -> bytes:
    encoded = rows.body if isinstance(rows, EncodedRows) else None
    return encode_batch(rows) if encoded is None else encoded


@lazy_dataclass(slots=True)
class Stored:
    """Where a broker stored the messages of one request."""

    code: int
    host: bytes
    queue_id: int
    queue_offset: int
    physical_offsets: tuple[int, ...]
    #: The handle of a timed message that was sent alone.
    recall_handle: str = ""
    #: Of a batch with messages that are delivered later: the offsets in the queues where these messages wait, and the
    #: slots of timed messages.
    queue_offsets: tuple[int, ...] = ()
    slots_ms: tuple[int, ...] = ()


def stored(answer: Command, count: int) -> Stored:
    """Decode the answer to a send; ProtocolError when it does not have ``count`` offsets."""
    ext = answer.ext or {}
    try:
        ids = str(ext["msgId"]).split(",")
        host, first = split_offset_msg_id(ids[0])
        if answer.body:
            offsets = decode_offsets(answer.body)
        elif len(ids) == 1:
            offsets = (first,)
        else:
            offsets = tuple([split_offset_msg_id(each)[1] for each in ids])
        found = Stored(answer.code, host, int(ext["queueId"]), int(ext["queueOffset"]), offsets)
        if DEFERRED_BATCHES in ext:
            found.queue_offsets, found.slots_ms = offsets[count : 2 * count], offsets[2 * count :]
            found.physical_offsets = offsets = offsets[:count]
        if "recallHandle" in ext:
            found.recall_handle = str(ext["recallHandle"])
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise ProtocolError(f"the answer to a send cannot be decoded: {error!r}") from None
    if len(offsets) != count or len(found.slots_ms) not in (0, count):
        raise ProtocolError(f"the answer has {len(offsets)} offsets for {count} messages")
    return found
