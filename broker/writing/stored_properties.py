"""A message on its way into the store, and its stored properties: the producer's and the broker's.

This module distinguishes plain messages from halves of transactions and from messages with a delay level or a time of
delivery; deferred.py says where such messages wait. It also says which queue a message with a priority goes to.
Neighbours: writer.py (uses this), store/log/valid_record.py (why many NULs in a row are sealed).
"""

from skylark.broker.options import BrokerOptions
from skylark.broker.store.log.valid_record import SECTOR_BYTES, SECTOR_OF_ZEROS, sealed
from skylark.broker.store.queue.delay_levels import level_in
from skylark.broker.writing.refusals import illegal
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.ids import RecallHandle, UniqueKeys
from skylark.mqcommon.message.properties import (
    DELAY,
    LIGHT_QUEUES,
    POP_HANDLE,
    PRIORITY,
    SHARDING_KEY,
    find_property,
    replace_properties,
)
from skylark.mqcommon.message.record import Record

_UNIQ_KEY = b"UNIQ_KEY\x01"
#: Properties that ask for a time of delivery, in order of precedence. Aliyun's clients set the last.
TIMED = (b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS", b"__STARTDELIVERTIME")
_ABSOLUTE = TIMED[2:]
# Properties that the broker sets itself. A consumed message that is sent again already has them all.
_BROKERS_OWN = (b"MSG_REGION", b"CLUSTER", b"TRACE_ON")
# A popped message that is sent again has the handle of the popped message, not its own. RocketMQ drops the handle, too.
_HANDLE = POP_HANDLE.encode()
_NOT_SENDERS = (*_BROKERS_OWN, _HANDLE)
_PRIORITY = PRIORITY.encode()
# RocketMQ's rule: a message that waits for its time, or that has an order, is of another type and has no priority.
_WITHOUT_PRIORITY = (DELAY.encode(), *TIMED, SHARDING_KEY.encode())
# A priority with more digits stands for the last queue, too, and would be slow to read.
_PRIORITY_DIGITS = 9
# Parts of the names of properties that `StoredProperties.of` or `LightQueues` must examine.
_SPECIAL = (b"DELAY", b"DELIVER", b"TRAN_MSG", b"CLUSTER\x01", _HANDLE, LIGHT_QUEUES.encode())


@lazy_dataclass(slots=True)
class Incoming:
    """A message before it is stored. ``properties`` and ``born_host`` are encoded."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int
    #: Stored as preparedTransactionOffset: identifies the deferred message that this message delivers; 0 for none.
    origin: int = 0
    #: With this a producer can recall a timed message.
    recall: RecallHandle | None = None

    @classmethod
    def of(cls, record: Record, topic: str, queue_id: int, properties: bytes) -> "Incoming":
        """The message of ``record``, for another queue."""
        return cls(
            topic,
            queue_id,
            record.body,
            properties,
            record.flag,
            record.sys_flag,
            record.born_timestamp,
            record.born_host,
            record.reconsume_times,
        )


#: (flag, body, encoded properties) of a message in a batch.
Row = tuple[int, bytes, bytes]


class StoredProperties:
    """Makes the stored properties of one broker's messages."""

    def __init__(self, options: BrokerOptions, unique_keys: UniqueKeys, clock: Clock) -> None:
        # In the order in which RocketMQ stores them.
        values = (options.region_id, options.broker_cluster_name, "true" if options.trace_on else "false")
        #: The broker's own properties, stored after each message's properties.
        self.suffix = b"".join(
            b"%s\x01%s\x02" % (name, value.encode()) for name, value in zip(_BROKERS_OWN, values, strict=True)
        )
        self._unique_keys = unique_keys
        self._clock = clock

    def of_rows(self, rows: list[Row]) -> list[Row]:
        """The rows with completed properties, to which `suffix` must be appended; a delayed message is refused."""
        if asks_nothing(b"".join([p for _, _, p in rows])) and all(
            [p.find(_UNIQ_KEY) >= 0 and p[-1] == 2 and len(p) <= SECTOR_BYTES for _, _, p in rows]
        ):
            # The usual case: nothing is to be added.
            return rows
        cut = len(self.suffix)
        return [(flag, body, self._of_row(properties)[:-cut]) for flag, body, properties in rows]

    def of(self, properties: bytes, *, even_deferred: bool = False) -> bytes | None:
        """A producer's properties and the broker's own; None for a message that must be deferred.

        ``even_deferred``: never None, because the message was already deferred as it asked.
        """
        if properties.startswith(_UNIQ_KEY) and properties.find(b"\x02", 0, SECTOR_BYTES) == len(properties) - 1:
            # A short unique key and nothing else.
            return properties + self.suffix
        # find is several times faster than "in" for bytes.
        has = properties.find
        if not even_deferred:
            is_special = is_half(properties)
            if has(b"DELAY") >= 0 or has(b"DELIVER") >= 0:
                is_special = is_special or _has_level(properties) or is_timed(properties, self._clock.now_ms())
            if is_special:
                return None
        if has(b"CLUSTER\x01") >= 0 or has(_HANDLE) >= 0:
            properties = _senders_own(properties)
            has = properties.find
        if properties and properties[-1] != 2:
            properties += b"\x02"
        if has(_UNIQ_KEY) < 0:
            key = self._unique_keys.next(self._clock.now_ms())
            properties = b"%sUNIQ_KEY\x01%s\x02" % (properties, key.encode())
        if len(properties) > SECTOR_BYTES and has(SECTOR_OF_ZEROS) >= 0:
            properties = sealed(properties)
        return properties + self.suffix

    def completed(self, properties: bytes) -> bytes:
        """As `of`, also for a message that asks to be deferred: it was already deferred, or is delivered now."""
        stored = self.of(properties, even_deferred=True)
        assert stored is not None
        return stored

    def _of_row(self, properties: bytes) -> bytes:
        stored = self.of(properties)
        if stored is None:
            raise illegal("a message in a batch is delayed or in a transaction; send such messages one by one")
        return stored


def asks_nothing(properties: bytes) -> bool:
    """Whether messages with these concatenated properties are all plain, without the broker's own properties.

    A result of False may be wrong: a value may look like the name of a property.
    """
    return all([properties.find(name) < 0 for name in _SPECIAL])


def is_half(properties: bytes) -> bool:
    """Whether the message is the half of a transaction."""
    return properties.find(b"TRAN_MSG") >= 0 and (find_property(properties, b"TRAN_MSG") or b"").lower() == b"true"


def _has_level(properties: bytes) -> bool:
    value = find_property(properties, b"DELAY")
    try:
        return level_in(value) > 0
    except ValueError:
        raise illegal(f"the property DELAY is {value!r}, which is not the number of a delay level") from None


def is_timed(properties: bytes, now_ms: int) -> bool:
    """Whether the message asks for a later time of delivery; a message that was delivered at its time does not."""
    if find_property(properties, b"TIMER_OUT_MS") is not None:
        return False
    if find_property(properties, b"TIMER_DEL_UNIQKEY") is not None:
        return True
    for name in TIMED:
        value = find_property(properties, name)
        if value:
            return _is_later(value, now_ms if name in _ABSOLUTE else 0)
    return False


def _is_later(value: bytes, than_ms: int) -> bool:
    """Whether the number is above ``than_ms``; also True for a malformed number, which is refused later."""
    try:
        return int(value[:20]) > than_ms  # 20 digits are enough for any time, and a very long number parses slowly
    except ValueError:
        return True


def _senders_own(properties: bytes) -> bytes:
    """``properties`` without the properties that brokers set.

    Of two properties with one name some clients read the first, some the last.
    """
    pairs = properties.split(b"\x02")
    return b"\x02".join([pair for pair in pairs if pair.partition(b"\x01")[0] not in _NOT_SENDERS])


def with_priority(properties: bytes, queue_id: int, queue_nums: int) -> tuple[bytes, int]:
    """The properties and the queue of a message that was sent to ``queue_id`` of a topic with ``queue_nums`` queues.

    As in RocketMQ 5.4 a message with priority 7 goes to queue 7, or to the last queue of a topic with fewer queues,
    whatever queue the client chose. Pops of topics of type PRIORITY read urgent queues first: delivery/pop/pops.py.
    """
    value = find_property(properties, _PRIORITY)
    if value is None:
        return properties, queue_id
    if is_half(properties) or any([find_property(properties, name) for name in _WITHOUT_PRIORITY]):
        return replace_properties(properties, {_PRIORITY: None}), queue_id
    if not value.isdigit():
        # As in RocketMQ, a text that is no number asks for nothing.
        return properties, queue_id
    return properties, max(min(int(value[:_PRIORITY_DIGITS]), queue_nums - 1), 0)
