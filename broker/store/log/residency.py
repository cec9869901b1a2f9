"""Reads that refuse to wait for the disk.

Within `resident_only`, a read of bytes that are not in memory raises NotResident, which names the bytes. The caller has
a thread read the bytes (`warm`) and repeats the operation with them. So code that reads the store stays plain, and no
page fault blocks the event loop. Reads outside of `resident_only` are not checked.
`ask` does the same for messages that only a bucket has (older.py).
Neighbours: compared.py (spans of the log, compared with their sums), cold_reads.py (repeats the operation).
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, TypeVar

from skylark.broker.store.older import OlderAway, OlderDamaged
from skylark.broker.store.sums.block_sums import BLOCK_BYTES, Block
from skylark.broker.store.sums.growing_sums import GrowingSums
from skylark.mqcommon.disk.files import MappedFile
from skylark.mqcommon.disk.loading import load
from skylark.mqcommon.errors import FileClosed, RequestRefused, SkylarkError

T = TypeVar("T")
# A blocking function, and its arguments.
_Question = tuple[Callable[..., Any], tuple[Hashable, ...]]


class ColdFile(Protocol):
    """A file whose bytes may be on disk only; see MappedFile."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    def resident(self, at: int, size: int) -> bool: ...

    def pread(self, at: int, size: int) -> bytes: ...


class Span(NamedTuple):
    """Bytes of a file."""

    file: ColdFile
    at: int
    size: int


class NotResident(SkylarkError):
    """``spans`` are on disk only or, if not ``on_disk``, so large that a thread should copy them.

    ``find`` returns bytes that replace the first span, which is damaged. It blocks.
    """

    def __init__(self, spans: Sequence[Span], *, on_disk: bool = True, find: Callable[[], bytes] | None = None) -> None:
        first = f", the first of {spans[0].file.path} at {spans[0].at}" if spans else ""
        super().__init__(f"{len(spans)} ranges are not in memory{first}")
        self.spans = spans
        self.on_disk = on_disk
        self._find = find

    def read(self) -> dict[Span, bytes]:
        """Read the bytes that the operation lacks. Blocks; for a thread. Raises Damaged."""
        if self._find is not None:
            return {self.spans[0]: self._find()}
        got: dict[Span, bytes] = {}
        for span in self.spans:
            with suppress(FileClosed):  # the file was removed: the repeated read will see that
                got[span] = span.file.pread(span.at, span.size)
        return got


class Got(dict[Span, bytes]):
    """Bytes that a thread has read for an operation, and the answers to what the operation has asked so far."""

    __slots__ = ("answers",)

    def __init__(self, spans: Mapping[Span, bytes] = {}, answers: Mapping[_Question, Any] = {}) -> None:
        super().__init__(spans)
        self.answers = answers


class InBucket(NotResident):
    """The operation needs the result of ``call``, which reads a bucket."""

    def __init__(self, call: Callable[..., Any], args: tuple[Hashable, ...]) -> None:
        super().__init__([], on_disk=False)
        self._question = call, args
        self.answers: dict[_Question, Any] = {}

    def read(self) -> dict[Span, bytes]:
        """Get the answer. Blocks, until the bucket answers or its deadline is over; for a thread."""
        call, args = self._question
        try:
            answer = call(*args)
        except (OlderAway, OlderDamaged) as error:
            # Raised where the operation asks, which may go on without the answer.
            answer = error.with_traceback(None)
        self.answers = {self._question: answer}
        return {}


class Hold(Protocol):
    """Where reads wait for the repair of damage."""

    async def wait(self, blocks: Sequence[Block]) -> None:
        """Return when ``blocks`` may be read again: they are mended, or given up. May be cancelled."""


_SYSTEM_BUSY = 2


class Damaged(RequestRefused):
    """``blocks`` of the log do not have the bytes that were written. Raised in the thread that reads them.

    ``hold``: where the reader waits before it reads again. A request that cannot wait is refused; consumers come again.
    """

    def __init__(self, blocks: Sequence[Block], hold: Hold | None = None) -> None:
        text = f"{len(blocks)} blocks of the commit log are damaged, the first one between byte {blocks[0].start}"
        super().__init__(_SYSTEM_BUSY, f"[OVERLOAD]{text} and {blocks[0].end}: they are being mended; try again later")
        self.blocks = blocks
        self.hold = hold

    async def wait(self) -> None:
        """Return when the blocks may be read again; raises this error if there is nobody who could mend them."""
        if self.hold is None:
            raise self
        await self.hold.wait(self.blocks)


class AllNotResident(NotResident):
    """What several reads lack: each is read in its own way."""

    def __init__(self, missing: Sequence[NotResident]) -> None:
        # Many reads may lack the same bytes.
        self._missing = {tuple(each.spans): each for each in missing}
        spans = dict.fromkeys(span for each in missing for span in each.spans)
        super().__init__([*spans], on_disk=any(each.on_disk for each in missing))

    def read(self) -> dict[Span, bytes]:
        """As in `NotResident`."""
        got: dict[Span, bytes] = {}
        for missing in self._missing.values():
            got |= missing.read()
        return got


class ColdBlocks(NotResident):
    """Blocks of a queue or index file that a thread reads, and compares with their sums, before they are used.

    The blocks hold ``size`` bytes from ``at`` on of ``file``, which begins at ``base`` of its chain.
    """

    def __init__(self, file: MappedFile, base: int, at: int, size: int, sums: GrowingSums, *, on_disk: bool) -> None:
        """``on_disk``: some of the bytes are not in memory."""
        starts = range(at // BLOCK_BYTES * BLOCK_BYTES, at + size, BLOCK_BYTES)
        spans = [Span(file, start, min(BLOCK_BYTES, file.size - start)) for start in starts]
        super().__init__(spans, on_disk=on_disk)
        self._file = file
        self._base = base
        self._sums = sums

    def read(self) -> dict[Span, bytes]:
        """As in `NotResident`; a block that does not fit its sum becomes a suspect."""
        sums = self._sums
        # Bytes that the kernel reads ahead would be in memory, and were never compared.
        with suppress(FileClosed):
            self._file.no_read_ahead()
        numbers = {span: sums.number_at(self._base + span.at) for span in self.spans}
        # Before the bytes: the event loop makes the sum of the last block longer while this thread reads.
        known = {span: sums.sum_of(number) for span, number in numbers.items()}
        got = super().read()
        for span, data in got.items():
            if known[span].fits(data):
                sums.see(numbers[span])
            else:
                sums.suspect(numbers[span])
        return got


# None outside of `resident_only`.
_GOT: ContextVar[Mapping[Span, bytes] | None] = ContextVar("resident_only", default=None)


class resident_only:
    """``with resident_only(got):`` reads within raise NotResident when they would wait for the disk.

    ``got``: bytes that a thread has read for these reads.
    """

    __slots__ = ("_got", "_token")

    def __init__(self, got: Mapping[Span, bytes] | None = None) -> None:
        self._got = {} if got is None else got

    def __enter__(self) -> None:
        self._token = _GOT.set(self._got)

    def __exit__(self, *_: object) -> None:
        _GOT.reset(self._token)


def bytes_got() -> Mapping[Span, bytes] | None:
    """The bytes that a thread has read; None outside of `resident_only`."""
    return _GOT.get()


def check_resident(file: ColdFile, at: int, size: int, *, around: int = 0) -> None:
    """Have these bytes in memory, so that the map can be read; within `resident_only` raise NotResident instead.

    Unreadable where the disk cannot read them.

    ``around``: read whole blocks of this size, because bytes nearby will be needed soon.
    """
    if file.resident(at, size):
        return
    if _GOT.get() is None:
        load(file, at, size)
    else:
        if around:
            start = at // around * around
            at, size = start, min(-(-(at + size) // around) * around, file.size) - start
        raise NotResident([Span(file, at, size)])


def ask(call: Callable[..., T], *args: Hashable) -> T:
    """The result of ``call(*args)``, which reads a bucket and blocks.

    Within `resident_only` InBucket, until a thread has got the result. Elsewhere OlderAway: nothing waits for a bucket
    in the event loop. Raises OlderAway and OlderDamaged as ``call`` does.
    """
    got = _GOT.get()
    if got is None:
        raise OlderAway
    answers = got.answers if isinstance(got, Got) else {}
    if (call, args) not in answers:
        raise InBucket(call, args)
    answer = answers[call, args]
    if isinstance(answer, OlderAway | OlderDamaged):
        raise answer
    found: T = answer
    return found


def warm(cold: NotResident, before: Mapping[Span, bytes] | None = None) -> Got:
    """Read the bytes into memory and return them. Blocks; for a thread. Raises Damaged.

    ``before``: what was read for the same operation before; its answers are returned, too.
    The kernel reads ahead by itself: posix_fadvise(WILLNEED) for the bytes that follow halved the rate (measured).
    """
    answers = before.answers if isinstance(before, Got) else {}
    got = cold.read()
    return Got(got, {**answers, **cold.answers} if isinstance(cold, InBucket) else answers)
