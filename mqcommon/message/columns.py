"""Many records at once: where the records of a buffer begin, and runs of similar ones as columns.

The messages of a producer mostly have one size, one topic and one kind of properties. Consecutive records that agree
in all these form a run: one struct decodes each of them, and the fields that differ are returned as columns. The first
record that does not agree ends the run. Readers decode records outside of runs one by one.
`record_starts` and `alike` serve all readers. `RunReader` is for the broker's readers (store/index/log_keys.py and
replication/replica.py), which do without numpy. sdk/arrow/records.py uses numpy to gather fields
from records of any size: it needs no runs, only `record_starts`.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.layout import HEAD_V4, MAGIC_V1, MAGIC_V2, MIN_RECORD, SIZE_MAGIC

# Shorter runs are read one by one.
MIN_RUN = 8
_FIRST_REACH = 32
_MAX_SHAPES = 256
# With fewer bytes it does not pay to check whether all records have one size.
_ONE_SIZE_BYTES = 4096
_unpack_size_magic = SIZE_MAGIC.unpack_from
_unpack_size = HEAD_V4.reader("size").unpack_from
_SIZE_MAGIC_PLACES = HEAD_V4.places("size", "magic")
_MAGICS = MAGIC_V1, MAGIC_V2
_SHAPE_PLACES = HEAD_V4.places("size", "magic", "sys_flag", "body_length")

T = TypeVar("T")


class DamagedRecord(ProtocolError):
    """Record ``row`` of a buffer is damaged; ``at`` is its first byte."""

    def __init__(self, row: int, at: int, reason: str) -> None:
        super().__init__(row, at, reason)
        self.row = row
        self.at = at
        self.reason = reason

    def __str__(self) -> str:
        return f"record {self.row} at byte {self.at}: {self.reason}"


def record_starts(data: bytes, *, check_magics: bool = True) -> Sequence[int]:
    """Where each record of ``data`` begins. Raises DamagedRecord unless it consists of whole records.

    A reader with numpy checks all magics at once, which is faster, and does not need ``check_magics``.
    """
    end, least = len(data), MIN_RECORD
    if end >= _ONE_SIZE_BYTES and (found := _of_one_size(data)):
        return found
    starts: list[int] = []
    add = starts.append
    at, last = 0, end - least
    if check_magics:
        unpack_both, magics = _unpack_size_magic, _MAGICS
        while at <= last:
            size, magic = unpack_both(data, at)
            if magic not in magics or size < least:
                break
            add(at)
            at += size
    else:
        unpack = _unpack_size
        while at <= last:
            (size,) = unpack(data, at)
            if size < least:
                break
            add(at)
            at += size
    if at != end:
        raise _damaged(data, starts, at)
    return starts


def whole_records(data: bytes) -> tuple[Sequence[int], DamagedRecord | None]:
    """Where the records of ``data`` begin whose ends are known; and the record that follows them, if its end is not."""
    try:
        return record_starts(data), None
    except DamagedRecord as error:
        return record_starts(data[: error.at]), error


def _damaged(data: bytes, starts: list[int], at: int) -> DamagedRecord:
    """The error for ``data``, in which no whole record begins at ``at``."""
    end = len(data)
    if at > end:
        return DamagedRecord(len(starts) - 1, starts[-1], f"{at - end} of its bytes are missing")
    if end - at < MIN_RECORD:
        return DamagedRecord(len(starts), at, f"{end - at} bytes are too few for a record")
    size, _ = _unpack_size_magic(data, at)
    reason = f"a size of {size} bytes is too small" if size < MIN_RECORD else "its magic is not a record's"
    return DamagedRecord(len(starts), at, reason)


def _of_one_size(data: bytes) -> range | None:
    """The starts of the records when all have one size and one magic, else None."""
    size, magic = _unpack_size_magic(data)
    count, rest = divmod(len(data), size or 1)
    if rest or size < MIN_RECORD or count < MIN_RUN or magic not in _MAGICS:
        return None
    return range(0, len(data), size) if alike(data, size, count, _SIZE_MAGIC_PLACES) == count else None


def alike(data: bytes, size: int, count: int, places: Sequence[int]) -> int:
    """How many of the ``count`` records of ``size`` bytes in ``data`` equal the first record at the bytes ``places``.

    The first record that differs ends the count.
    """
    for place in places:
        first = data[place : place + 1]
        column = data[place : count * size : size]
        if column != first * count:
            count -= len(column.lstrip(first))
    return count


class Fixed(NamedTuple):
    """Bytes that all records of a shape have at offset ``at``, where column ``column`` is."""

    column: int
    at: int
    content: bytes


class Shape(NamedTuple, Generic[T]):
    """How to decode records of one size with bodies of one length; ``known`` is the reader's own data about them."""

    record: struct.Struct
    fixed: tuple[Fixed, ...]
    known: T


class Run(NamedTuple, Generic[T]):
    """The first ``records`` records of a buffer, all of one shape, as the columns of its struct."""

    records: int
    columns: list[tuple[Any, ...]]
    known: T


class RunReader(Generic[T]):
    """Reads runs; remembers shapes, and how many records the next run may have.

    ``learn`` returns the shape of a record, given its bytes and the length of its body, or None when it has none.
    """

    def __init__(self, learn: Callable[[bytes, int], Shape[T] | None], max_reach: int) -> None:
        self._learn = learn
        self._max_reach = max_reach
        self._shapes: dict[tuple[int, int], Shape[T]] = {}
        # How many records to check for the next run: few after a short run.
        self.reach = _FIRST_REACH

    def read(self, data: bytes, size: int, body_bytes: int) -> Run[T] | None:
        """The run that ``data`` begins with; None when it is shorter than `MIN_RUN` records.

        The first record must be a V1 record with IPv4 hosts, ``size`` bytes and a body of ``body_bytes``. ``data`` has
        whole records only if all have that size; it should hold `reach` records, if there are that many.
        """
        most = len(data) // size
        count = alike(data, size, most, _SHAPE_PLACES)
        run = self._run(data[: count * size], size, body_bytes) if count >= MIN_RUN else None
        if run is not None and run.records == most:
            self.reach = min(2 * self.reach, self._max_reach)
        else:
            self.reach = _FIRST_REACH
        return run

    def refuse(self) -> None:
        """Tell that the last run was of no use to the reader, so that fewer records are checked for the next one."""
        self.reach = _FIRST_REACH

    def _run(self, data: bytes, size: int, body_bytes: int) -> Run[T] | None:
        shape = self._shapes.get((size, body_bytes))
        if shape is None or not all([data.startswith(fixed.content, fixed.at) for fixed in shape.fixed]):
            shape = self._learn(data[:size], body_bytes)
            if shape is None:
                return None
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            self._shapes[size, body_bytes] = shape
        columns = list(zip(*shape.record.iter_unpack(data), strict=True))
        count = total = len(columns[0])
        for number, _, content in shape.fixed:
            column = columns[number][:count]
            if column.count(content) < count:
                count = next(place for place, value in enumerate(column) if value != content)
        if count < MIN_RUN:
            return None
        return Run(count, columns if count == total else [column[:count] for column in columns], shape.known)
