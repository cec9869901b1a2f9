"""Bodies of requests, checked against limits, because decoding them blocks the event loop.

The limit of bytes bounds the parser's work; the limit of entries (members of maps and lists) the work on its result.
"""

from collections.abc import Generator, Iterator
from itertools import chain, islice
from typing import Any, Final, NamedTuple, TypeVar

from skylark.mqcommon.errors import FrameTooLarge, ProtocolError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol import strict_cbor
from skylark.remoting.protocol.body import Body, members
from skylark.remoting.protocol.command import CBOR
from skylark.remoting.protocol.dialect import Dialect, dumps, loads

B = TypeVar("B", bound=Body)


@lazy_dataclass(frozen=True, slots=True)
class BodyLimits:
    """The limits of a body; ``relaxed_bytes``: for JSON that is not standard, which Python code reads."""

    max_bytes: int = 64 * 1024
    max_entries: int | None = 5_000
    relaxed_bytes: int = 16 * 1024


#: The limits of most requests: at most some 20 ms to decode.
SMALL: Final = BodyLimits()


def decode_limited(cls: type[B], data: bytes, codec: int, limits: BodyLimits = SMALL) -> B:
    """As `decode_body`. Raises ProtocolError when the body cannot be read or is over a limit."""
    if len(data) > limits.max_bytes:
        raise ProtocolError(f"it has {len(data)} bytes, such a body has at most {limits.max_bytes}")
    found = strict_cbor.loads(data) if codec == CBOR else loads(data, relaxed_bytes=limits.relaxed_bytes)
    most = limits.max_entries
    # An entry takes a byte at least: the entries of a short body need not be counted.
    if most is not None and len(data) > most and not _has_at_most(found, most):
        raise ProtocolError(f"it has more than {most} entries")
    return cls.from_wire(found)


def _has_at_most(value: Any, most: int) -> bool:
    """Whether all maps and lists in ``value`` together have at most ``most`` entries; stops counting beyond that."""
    left = most
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            inner: Any = one.values()
        elif isinstance(one, list | tuple):
            inner = one
        else:
            continue
        left -= len(inner)
        if left < 0:
            return False
        waiting.extend(inner)
    return True


#: Encoding a chunk of this size takes about a millisecond.
CHUNK_BYTES: Final = 256 * 1024
CHUNK_ENTRIES: Final = 500
#: An entry that does not fit is skipped, as later entries may be smaller. After this many skips no more are tried.
MAX_SKIPPED: Final = 16

#: A body with at most this many entries, as most routes are, is encoded at once; in chunks only when it does not fit.
FEW_ENTRIES: Final = 8

_MAP: Final = 5
_ARRAY: Final = 4


class CutBody(NamedTuple):
    """An encoded body in ``data``: of its ``total`` entries in all lists and maps, ``left_out`` are missing."""

    data: bytes
    left_out: int
    total: int


class _Entries:
    """The entries of one list or map, encoded one after the other."""

    def __init__(self, values: Any, write: Any, dialect: Dialect) -> None:
        self._values = values
        self._write = write
        self._dialect = dialect
        self._chunks: list[bytes] = []
        self.count = 0

    def __len__(self) -> int:
        return len(self._values)

    def take(self, room: int) -> Generator[None, None, int]:
        """Encode the entries that fit into ``room`` bytes. Yields after each chunk; returns how many bytes it took."""
        used, wanted, skipped = 0, 1, 0
        entries = self._entries()
        while chunk := list(islice(entries, wanted)):
            data = self._encoded(chunk)
            if used + len(data) + 1 <= room:
                self._chunks.append(data)
                self.count += len(chunk)
                used += len(data) + 1
                wanted = max(1, min(2 * wanted, CHUNK_BYTES * len(chunk) // len(data), CHUNK_ENTRIES))
                yield
            elif len(chunk) > 1:
                wanted = len(chunk) // 2
                entries = chain(chunk, entries)
            else:
                skipped += 1
                if skipped > MAX_SKIPPED:
                    break
        return used

    def _entries(self) -> Iterator[Any]:
        if isinstance(self._values, dict):
            # Not a list of all pairs: making a million tuples takes far longer than copying the map.
            return iter(self._values.copy().items())
        return iter(list(self._values))

    def encoded(self) -> bytes:
        """All entries that were taken, as one value."""
        is_map = isinstance(self._values, dict)
        if self._dialect is Dialect.CBOR:
            return _cbor_head(_MAP if is_map else _ARRAY, self.count) + b"".join(self._chunks)
        opening, closing = (b"{", b"}") if is_map else (b"[", b"]")
        return opening + b",".join(self._chunks) + closing

    def _encoded(self, chunk: list[Any]) -> bytes:
        value = dict(chunk) if isinstance(self._values, dict) else chunk
        data = dumps(value if self._write is None else self._write(value), self._dialect)
        return data[len(_cbor_head(_MAP, len(chunk))) :] if self._dialect is Dialect.CBOR else data[1:-1]


def encode_within(body: Body, dialect: Dialect, limit: int) -> Generator[None, None, CutBody]:
    """``body`` in at most ``limit`` bytes; yields after each chunk. Raises FrameTooLarge when nothing fits."""
    sizes = [
        len(value) for each in members(type(body)) if isinstance(value := getattr(body, each.attribute), dict | list)
    ]
    if sum(sizes) <= FEW_ENTRIES:
        data = dumps(body.to_wire(), dialect)
        if len(data) <= limit:
            return CutBody(data, 0, sum(sizes))
    tables: dict[str, _Entries] = {}
    plain: dict[str, bytes] = {}
    for each in members(type(body)):
        value = getattr(body, each.attribute)
        if isinstance(value, dict | list):
            tables[each.wire] = _Entries(value, each.kind.write, dialect)
        elif value is not None:
            plain[each.wire] = dumps(value if each.kind.write is None else each.kind.write(value), dialect)
    room = limit - sum(map(len, plain.values())) - sum(len(name) + 16 for name in (*plain, *tables))
    if room < 0:
        raise FrameTooLarge(limit - room, limit)
    # The longest list last, so that this list is cut.
    for name in sorted(tables, key=lambda name: len(tables[name])):
        room -= yield from tables[name].take(room)
    encoded = plain | {name: table.encoded() for name, table in tables.items()}
    total = sum(map(len, tables.values()))
    left_out = total - sum(table.count for table in tables.values())
    return CutBody(b"".join(_object(encoded, dialect)), left_out, total)


def _object(encoded: dict[str, bytes], dialect: Dialect) -> Iterator[bytes]:
    if dialect is Dialect.CBOR:
        yield _cbor_head(_MAP, len(encoded))
        for name in sorted(encoded):
            yield dumps(name, dialect)
            yield encoded[name]
        return
    separator = b"{"
    for name in sorted(encoded):
        yield separator
        yield dumps(name, dialect)
        yield b":"
        yield encoded[name]
        separator = b","
    yield b"}" if encoded else b"{}"


def _cbor_head(major: int, count: int) -> bytes:
    if count < 24:
        return bytes((major << 5 | count,))
    for more, size in ((24, 1), (25, 2), (26, 4)):
        if count < 1 << 8 * size:
            return bytes((major << 5 | more,)) + count.to_bytes(size, "big")
    return bytes((major << 5 | 27,)) + count.to_bytes(8, "big")
