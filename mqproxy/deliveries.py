"""Deliveries of messages to a group, and their receipts. Pure, but for the log.

A message is named by its receipt handle, the text that RocketMQ's proxy gives to clients: a broker's pop handle, and
the offset of the message in the commit log. So any proxy can acknowledge a message that another proxy has handed out.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Self, overload

from skylark.mqproxy.columns import Columns, columns_of
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.protocol.pop_info import NORMAL, PopHandle, message_key, parse_handle, parse_offset_info
from skylark.remoting.protocol.requests.pops import PopMessageResponseHeader
from skylark.sdk.consumer.popped import MAX_OFFSETS, DamagedMessage, Lease, ReceivedMessage, received

# The largest place in a log.
_MAX_PLACE = 2**63 - 1
# The longest text of a receipt, which has eight numbers and the name of a broker. Clients may send any text, and the
# handle in it is kept for the next receipt of the same pop: at most some 8 KiB each, where a stranger made it up.
_MAX_RECEIPT_CHARS = 1_024
_MAX_KEPT_HANDLES = 1_024
_DIGITS = b"0123456789"
# Makes a named tuple without a call of Python, which takes a third of the time.
_new = tuple.__new__
# What happens to a damaged message of an ordered group.
_ONCE_MORE: Final = "the messages after it wait until it is delivered again"
_GIVEN_UP: Final = "its group goes on without it, as it was damaged before, too"
# Stands for the pop of the message before the first one.
_NO_POP = PopHandle(0, 0, 0, 0, "", "", 0)


class Receipt(NamedTuple):
    """One delivery of a message to a group.

    ``pop``: the handle without the offset, the same for all messages of one pop in one queue. ``pop_text``: ``pop`` as
    text.
    """

    pop_text: str
    pop: PopHandle
    offset: int
    physical_offset: int

    @property
    def handle(self) -> PopHandle:
        """The broker's handle of the message, which names its ``offset`` in the queue."""
        return self.pop._replace(offset=self.offset)

    def __str__(self) -> str:
        return f"{self.pop_text} {self.offset} {self.physical_offset}"

    @classmethod
    def of(cls, handle: PopHandle, physical_offset: int) -> Self:
        """The receipt for the delivery with this handle, which names an offset."""
        assert handle.offset is not None
        pop = handle._replace(offset=None)
        return cls(str(pop), pop, handle.offset, physical_offset)

    @classmethod
    def parse(cls, text: str, now_ms: int) -> "Receipt":
        """The receipt that a client sends. Refused when ``text`` is no receipt, or the receipt's time is over."""
        return cls.parse_all((text,), now_ms)[0]

    @classmethod
    def parse_all(cls, texts: Sequence[str], now_ms: int) -> "Sequence[Receipt]":
        """As `parse`, for the receipts of one call. Refused when one of them cannot be used."""
        if len(texts) > 1 and (run := _run_of(texts, now_ms)) is not None:
            return run
        found: list[Receipt] = []
        digits = last_pop_text = ""
        pop, start_offset = _NO_POP, 0
        for text in texts:
            if len(text) > _MAX_RECEIPT_CHARS:
                raise _unreadable(f"it has more than {_MAX_RECEIPT_CHARS} characters")
            rest, _, place = text.rpartition(" ")
            pop_text, _, offset = rest.rpartition(" ")
            # One call names many messages of one pop.
            if pop_text != last_pop_text or not found:
                try:
                    pop, start_offset, shown_ms = _pop_of(pop_text)
                except ValueError as error:
                    raise _unreadable(str(error)) from None
                if shown_ms <= now_ms:
                    raise Refused(wire.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
                last_pop_text = pop_text
            digits += offset + place
            try:
                number, physical_offset = int(offset), int(place)
            except ValueError:
                raise _without_offset() from None
            if not 0 <= number - start_offset < MAX_OFFSETS:
                raise Refused(wire.INVALID_RECEIPT_HANDLE, "the receipt handle has an offset that its pop cannot have")
            if physical_offset > _MAX_PLACE:
                raise _without_offset()
            found.append(_new(cls, (pop_text, pop, number, physical_offset)))
        # Python also reads digits of other scripts, signs and underscores.
        if found and not (digits.isascii() and digits.isdigit()):
            raise _without_offset()
        return found


def _unreadable(reason: str) -> Refused:
    return Refused(wire.INVALID_RECEIPT_HANDLE, f"the receipt handle cannot be read: {reason}")


def _without_offset() -> Refused:
    return Refused(wire.INVALID_RECEIPT_HANDLE, "the receipt handle has no offset")


@lru_cache(maxsize=_MAX_KEPT_HANDLES)
def _pop_of(text: str) -> tuple[PopHandle, int, int]:
    """(the pop, its first offset, when its messages are shown again in ms since 1970); ValueError as `parse_handle`."""
    pop = parse_handle(text)
    if pop.offset is not None:
        raise ValueError("it has more than 9 parts")
    return pop, pop.start_offset, pop.pop_time + pop.invisible_time


class ReceiptRun(Sequence[Receipt]):
    """Receipts of one pop. No object is made for a receipt before somebody asks for it.

    ``pop`` and ``pop_text`` are of all of them. ``bits``: their places after the pop's first offset, as bits.
    """

    __slots__ = ("_offsets", "_physical_offsets", "bits", "pop", "pop_text")

    def __init__(
        self, pop_text: str, pop: PopHandle, offsets: Sequence[int], physical_offsets: Sequence[int], bits: int
    ) -> None:
        self.pop_text = pop_text
        self.pop = pop
        self.bits = bits
        self._offsets = offsets
        self._physical_offsets = physical_offsets

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> Receipt: ...

    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...

    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        return Receipt(self.pop_text, self.pop, self._offsets[index], self._physical_offsets[index])


def _run_of(texts: Sequence[str], now_ms: int) -> ReceiptRun | None:
    """The receipts with these texts; None unless all are of one pop, and of use."""
    pop_text = texts[0].rpartition(" ")[0].rpartition(" ")[0]
    joined = f";{';'.join(texts)}"
    # ASCII has the digits that a number may have, and no others.
    if max(map(len, texts)) > _MAX_RECEIPT_CHARS or not joined.isascii():
        return None
    numbers = joined.replace(f";{pop_text} ", ";").encode()
    # Nothing but two numbers of each receipt is left.
    if numbers.translate(None, _DIGITS) != b"; " * len(texts):
        return None
    try:
        pairs = [*map(int, numbers[1:].replace(b";", b" ").split(b" "))]
        pop, start_offset, shown_ms = _pop_of(pop_text)
    except ValueError:
        return None
    offsets, physical_offsets = pairs[::2], pairs[1::2]
    first, last = min(offsets), max(offsets)
    is_of_use = shown_ms > now_ms and max(physical_offsets) <= _MAX_PLACE
    if not (is_of_use and start_offset <= first and last - start_offset < MAX_OFFSETS):
        return None
    bits = 0
    for offset in offsets:
        bits |= 1 << offset - start_offset
    return ReceiptRun(pop_text, pop, offsets, physical_offsets, bits)


class Delivery(NamedTuple):
    """A message, its receipt, and how often it was delivered, this time included."""

    message: ReceivedMessage
    receipt: Receipt
    attempt: int
    invisible_ms: int


class PoppedRun(Sequence[Delivery]):
    """The deliveries of a pop whose messages are alike. ``make`` makes them, when somebody asks for one.

    ``pop_text`` and ``invisible_ms`` are of the receipts of all of them.
    """

    __slots__ = ("_deliveries", "_make", "columns", "invisible_ms", "pop_text")

    def __init__(self, columns: Columns, pop_text: str, invisible_ms: int, make: Callable[[], list[Delivery]]) -> None:
        self.columns = columns
        self.pop_text = pop_text
        self.invisible_ms = invisible_ms
        self._make = make
        self._deliveries: list[Delivery] | None = None

    def __len__(self) -> int:
        return len(self.columns.keys)

    @overload
    def __getitem__(self, index: int) -> Delivery: ...

    @overload
    def __getitem__(self, index: slice) -> list[Delivery]: ...

    def __getitem__(self, index: int | slice) -> Delivery | list[Delivery]:
        if self._deliveries is None:
            self._deliveries = self._make()
        return self._deliveries[index]


class InOrder(list[Delivery]):
    """The deliveries of an ordered pop. ``given_up``: damaged messages to acknowledge, so that their order goes on."""

    __slots__ = ("given_up",)

    def __init__(self, deliveries: Iterable[Delivery], given_up: Sequence[Receipt]) -> None:
        super().__init__(deliveries)
        self.given_up = given_up


def deliveries_of(
    data: bytes, header: PopMessageResponseHeader, topic: str, group: str, broker_name: str, *, is_ordered: bool
) -> Sequence[Delivery]:
    """The deliveries in the answer to a pop. ProtocolError when the answer cannot be read.

    A damaged message is left out. Where order counts, the messages after it in its queue wait until it comes again: its
    bytes may have been changed on the way. If it is damaged once more, it is given up.
    """
    if is_ordered:
        return _in_order(data, header, topic, group, broker_name)

    def one_by_one() -> list[Delivery]:
        return _deliveries(received(data, header, topic, group, broker_name, ""), {})

    if (handle := _only_pop(header, broker_name)) is not None:
        columns = columns_of(data)
        if columns is not None:
            return PoppedRun(columns, str(handle), header.invisible_time, one_by_one)
    return one_by_one()


def _in_order(data: bytes, header: PopMessageResponseHeader, topic: str, group: str, broker_name: str) -> InOrder:
    # For ordered groups brokers count deliveries outside of the messages, which are not stored again.
    counts = parse_offset_info(header.order_count_info or "")
    damaged: list[DamagedMessage] = []
    messages = received(data, header, topic, group, broker_name, "", damaged.append)
    given_up: list[Receipt] = []
    for number, message in enumerate(damaged):
        lease, offset, _ = message
        # Only the offset of the first damaged message is certain: that message may seem to be as long as several.
        if number == 0 and _earlier(lease.queue_id, offset, counts):
            given_up.append(Receipt.of(lease.handle(offset), 0))
            message.log(_GIVEN_UP)
        else:
            messages = [other for other in messages if other.lease != lease or other.leased_offset < offset]
            message.log(_ONCE_MORE)
    return InOrder(_deliveries(messages, counts), given_up)


def _only_pop(header: PopMessageResponseHeader, broker_name: str) -> PopHandle | None:
    """What the handles of all messages share, if all are from one queue and none came back; else None."""
    retry, _, rest = (header.start_offset_info or "").partition(" ")
    queue_id, _, start = rest.partition(" ")
    # Python refuses to read thousands of digits. Receipts of that length are refused, too.
    if retry != NORMAL or not (queue_id.isdecimal() and start.isdecimal()) or len(rest) > _MAX_RECEIPT_CHARS:
        return None
    return PopHandle(
        int(start), header.pop_time, header.invisible_time, header.revive_qid, retry, broker_name, int(queue_id)
    )


def _deliveries(messages: Sequence[ReceivedMessage], counts: dict[tuple[str, str], str]) -> list[Delivery]:
    """The messages of one pop with their receipts. ``counts``: as `_attempt` takes it."""
    found: list[Delivery] = []
    # Messages of one queue share their lease and follow one another.
    lease: Lease | None = None
    pop, pop_text, invisible_ms = _NO_POP, "", 0
    for message in messages:
        if message.lease is not lease:
            lease = message.lease
            pop = lease.handle()
            pop_text, invisible_ms = str(pop), pop.invisible_time
        record = message.record
        # A message of an inner batch has the batch's offset in its handle.
        offset = record.queue_offset if message.whole is None else message.leased_offset
        receipt = _new(Receipt, (pop_text, pop, offset, record.physical_offset))
        attempt = _attempt(message, counts) if counts else record.reconsume_times + 1
        found.append(_new(Delivery, (message, receipt, attempt, invisible_ms)))
    return found


def _attempt(message: ReceivedMessage, counts: dict[tuple[str, str], str]) -> int:
    """How often a message of an ordered group was delivered: such messages are not stored again, so brokers count."""
    earlier = _earlier(message.lease.queue_id, message.leased_offset, counts)
    return message.delivery_attempt if earlier is None else earlier + 1


def _earlier(queue_id: int, offset: int, counts: dict[tuple[str, str], str]) -> int | None:
    """How often this message was delivered before; None if the broker does not say."""
    again = counts.get((NORMAL, message_key(queue_id, offset))) or counts.get((NORMAL, str(queue_id)))
    return int(again) if again is not None and again.isascii() and again.isdigit() else None
