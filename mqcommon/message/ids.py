"""Ids of messages.

offset message id: upper-case hex of the store host (4 or 16 bytes ip, int port) and the physical offset (long):
32 characters, or 56 with IPv6. It says where a message is stored, so any broker tool can fetch it.
unique key: made by the client before it sends; hex of ip, pid, a number for this generator, ms since the start of
the month (of the client's local time, as in RocketMQ), a counter. Servers do not interpret it.
recall handle: names a timed message, as RocketMQ 5 does; base64 of ``v1 topic broker time uniqueKey``.
"""

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime, timedelta
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

from skylark.mqcommon.lazy_dataclass import lazy_dataclass

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
# pid, the generator's number, ms since the start of the month, counter
_UNIQUE_KEY_END = struct.Struct(">H4xI2x")
_KEY_ENDS = tuple([b"%02X\x02" % number for number in range(256)])


def encode_host(ip: str, port: int) -> bytes:
    """An address as records hold it: 4 or 16 bytes ip, then the port as int."""
    return ip_address(ip).packed + _INT.pack(port)


@lru_cache(maxsize=4_096)
def decode_host(host: bytes) -> tuple[str, int]:
    """(ip, port) of 8 or 20 bytes."""
    return str(ip_address(host[:-4])), int(_INT.unpack(host[-4:])[0])


def offset_msg_id(host: bytes, physical_offset: int) -> str:
    """The offset message id of the record at ``physical_offset`` of the broker at ``host``."""
    return f"{host.hex()}{physical_offset:016x}".upper()


def split_offset_msg_id(text: str) -> tuple[bytes, int]:
    """(host as records hold it, physical offset). Raises ValueError when ``text`` is not an offset message id."""
    if len(text) not in (32, 56):
        raise ValueError(f"{text!r} is not an offset message id, which has 32 or 56 hex digits")
    raw = bytes.fromhex(text)
    return raw[:-8], int(_LONG.unpack(raw[-8:])[0])


def parse_offset_msg_id(text: str) -> tuple[str, int, int]:
    """(ip, port, physical offset). Raises ValueError when ``text`` is not an offset message id."""
    host, physical_offset = split_offset_msg_id(text)
    return *decode_host(host), physical_offset


@lazy_dataclass(frozen=True, slots=True)
class UniqueKey:
    """The parts of a unique key: the process that made it, and when it was made."""

    ip: str
    pid: int
    made_at_ms: int


def parse_unique_key(text: str, now_ms: int) -> UniqueKey:
    """The parts of the unique key ``text``. Raises ValueError when it is not a unique key.

    A key does not say its month or time zone. As in RocketMQ, it counts as of the last month, in local time, in which
    its time is past.
    """
    raw = bytes.fromhex(text) if text.isalnum() else b""
    if len(raw) not in (16, 28):
        raise ValueError(f"{text!r} is not a unique key, which has 32 or 56 hex digits")
    ip, (pid, since_month_ms) = raw[:-12], _UNIQUE_KEY_END.unpack(raw[-12:])
    month = _month_start(now_ms)
    if round(month.timestamp() * 1000) + since_month_ms >= now_ms:
        month = (month - timedelta(days=1)).replace(day=1)
    return UniqueKey(str(ip_address(ip)), pid, round(month.timestamp() * 1000) + since_month_ms)


def _month_start(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


class UniqueKeys:
    """Makes unique keys; each producer has its own generator.

    ``generator_number`` distinguishes the generators of one process (Java uses a class loader's hash).
    """

    __slots__ = ("_base_ms", "_counter", "_month_end_ms", "_prefix")

    def __init__(self, ip: str, pid: int, generator_number: int) -> None:
        packed = ip_address(ip).packed
        self._prefix = f"{packed.hex()}{pid & 0xFFFF:04x}{generator_number & 0xFFFFFFFF:08x}".upper()
        self._counter = 0
        self._base_ms = 0
        self._month_end_ms = 0

    def next(self, now_ms: int) -> str:
        """A key that this generator has not made before (65,536 keys a millisecond at the most)."""
        if now_ms >= self._month_end_ms or now_ms < self._base_ms:
            self._start_month(now_ms)
        self._counter = counter = self._counter + 1 & 0xFFFF
        return f"{self._prefix}{now_ms - self._base_ms:08X}{counter:04X}"

    def many(self, now_ms: int, count: int) -> list[bytes]:
        """``count`` new keys, as encoded properties: ``UNIQ_KEY \\x01 key \\x02``. At most 65,536 a millisecond."""
        head, number = self.block(now_ms, count)
        keys: list[bytes] = []
        while count > 0:
            # Up to 256 keys differ in their ends only. Formatting each of them would take five times as long.
            low = number & 0xFF
            ends = _KEY_ENDS[low : low + count]
            start = b"%s%02X" % (head, number >> 8 & 0xFF)
            keys += [start + end for end in ends]
            number += len(ends)
            count -= len(ends)
        return keys

    def block(self, now_ms: int, count: int) -> tuple[bytes, int]:
        """The common beginning of ``count`` new keys, as encoded properties, and the number of the first key.

        Each key ends with its number (the low 16 bits, as four upper-case hex digits) and ``\\x02``.
        """
        if now_ms >= self._month_end_ms or now_ms < self._base_ms:
            self._start_month(now_ms)
        first = self._counter + 1
        self._counter = (self._counter + count) & 0xFFFF
        return f"UNIQ_KEY\x01{self._prefix}{now_ms - self._base_ms:08X}".encode(), first

    def _start_month(self, now_ms: int) -> None:
        start = _month_start(now_ms)
        end = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
        self._base_ms = int(start.timestamp() * 1000)
        self._month_end_ms = int(end.timestamp() * 1000)


_RECALL_VERSION = "v1"


class RecallHandle(NamedTuple):
    """Names a timed message.

    ``slot_ms`` lies in the slot in which the message waits; the delivery may be later or earlier.
    """

    topic: str
    broker_name: str
    slot_ms: int
    unique_key: str

    def encode(self) -> str:
        text = f"{_RECALL_VERSION} {self.topic} {self.broker_name} {self.slot_ms} {self.unique_key}"
        return urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> "RecallHandle":
        """ValueError when ``text`` is not a handle."""
        try:
            version, topic, broker_name, slot, unique_key = urlsafe_b64decode(text.encode()).decode().split(" ")
            if version == _RECALL_VERSION and slot.isascii() and slot.isdigit() and len(slot) <= 18 and unique_key:
                return cls(topic, broker_name, int(slot), unique_key)
        except ValueError:
            pass
        raise ValueError("recall handle is invalid")
