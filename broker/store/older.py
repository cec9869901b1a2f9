"""Messages whose files were removed from the log, and which are in the bucket: what the store asks for them.

The methods block, so the event loop asks through `ask` of log/residency.py: the reader is stopped, a thread gets the
answer, and the reader runs again. `known_first` and `earliest_ms` never block.
While the bucket cannot be read, methods raise OlderAway: readers come again, and no reader is moved to another offset.
Bytes that differ from their CRC raise OlderDamaged.
Neighbours: reader.py and query.py (ask), tier/reads.py (answers).
"""

from typing import NamedTuple, Protocol

from skylark.broker.store.filter import Filter
from skylark.mqcommon.errors import RequestRefused, StoreError

_SYSTEM_BUSY = 2


class OlderAway(RequestRefused):
    """The bucket cannot be read now, or the caller may not wait for a bucket. Consumers come again."""

    def __init__(self, reason: str = "it is read by no event loop") -> None:
        text = f"[OVERLOAD]the message is in the bucket of old messages: {reason}; try again later"
        super().__init__(_SYSTEM_BUSY, text)


class OlderDamaged(StoreError):
    """An object in the bucket is missing, or has other bytes than were written."""


class OlderRead(NamedTuple):
    """Whole stored messages, one after another, and where the next read begins.

    ``is_gone``: the bucket does not have the message at the offset; ``next_offset`` is then the offset of the first
    later message in the bucket or in the store. Without records, and without ``is_gone``, no message before
    ``next_offset`` is wanted.
    """

    next_offset: int
    records: bytes = b""
    messages: int = 0
    is_gone: bool = False


class OlderFound(NamedTuple):
    """Records that may have a key, newest first; an inner batch as a whole. ``cut``: why not all was searched.

    ``next_end_ms``: what is left are the messages that were stored until this time; None if the search cannot go on.
    """

    records: list[bytes]
    cut: str = ""
    next_end_ms: int | None = None


class OlderQuery(NamedTuple):
    """At most ``max_num`` records of ``topic`` that may have ``key``, stored from ``begin_ms`` to ``end_ms``.

    ``before``: the records begin before this physical offset. ``unique``: ``key`` is a unique key.
    """

    topic: str
    key: str
    begin_ms: int
    end_ms: int
    before: int
    max_num: int
    unique: bool


class OlderMessages(Protocol):
    """Set as ``log.older`` of a store. For any thread."""

    @property
    def earliest_ms(self) -> int:
        """When the oldest message in the bucket was stored (ms); -1 if that is not known, or there is none."""

    def known_first(self, topic: str, queue_id: int) -> int | None:
        """As `first_offset`, from memory; None if it is not known yet, a great number if the bucket has nothing."""

    def first_offset(self, topic: str, queue_id: int, local: int) -> int:
        """The first offset of a queue in the bucket; ``local``, where the queue begins in the store, if there is none.

        Blocks.
        """

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        end: int,
        max_count: int,
        max_bytes: int,
        wanted: Filter,
        unwraps: bool,
    ) -> OlderRead:
        """Messages from ``offset`` on, before ``end``, as `read_queue`. Blocks."""

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored (ms), for figures; -1 if there is none, or the bucket cannot be read. Blocks."""

    def offset_by_time(self, topic: str, queue_id: int, end: int, timestamp_ms: int, upper: bool) -> int:
        """The first offset before ``end`` stored at or after ``timestamp_ms``, or with ``upper`` the last at or before.

        Returns ``end`` if all are older, with ``upper`` the first offset if all are newer. Blocks.
        """

    def record_at(self, physical_offset: int) -> bytes | None:
        """The stored message that starts at ``physical_offset``; None when no message does. Blocks."""

    def with_key(self, query: OlderQuery) -> OlderFound:
        """Search by key, newest first, for some seconds at most. Blocks."""
