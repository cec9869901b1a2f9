"""Which master wrote which part of a log: (epoch, offset of its first byte), in order. Pure.

Each election has a higher epoch. Two logs of a set have the same bytes as far as the same masters wrote them. So the
lists alone show where a slave's log diverges from its master's: in the newest epoch that both have, at the earlier of
its two ends. Later bytes in the slave's log were written by a replaced master, and were never confirmed.
An epoch without a byte is not kept: the next epoch begins at the same place. A log that is older than its Controller
begins with epoch 0.

The file is RocketMQ's epochFileCheckpoint, as text: number of entries, CRC32, then a line "epoch-offset" for each.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple
from zlib import crc32

from skylark.mqcommon.errors import ProtocolError

# RocketMQ keeps 31 bits of each CRC, and takes 0 for "do not check".
_CRC_MASK = 0x7FFFFFFF
_UNCHECKED_CRC = 0
OLDER_THAN_CONTROLLER = 0


class Epoch(NamedTuple):
    """The master of ``epoch`` began to write at ``start``."""

    epoch: int
    start: int


class Epochs:
    """The epochs of one log. Invariant: both numbers rise from entry to entry."""

    def __init__(self, entries: Iterable[Epoch] = ()) -> None:
        """ProtocolError when the entries are not in order."""
        self._entries: list[Epoch] = []
        for entry in entries:
            self._check(entry)
            self._entries.append(entry)

    def __iter__(self) -> Iterator[Epoch]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def last(self) -> Epoch | None:
        return self._entries[-1] if self._entries else None

    @property
    def is_whole(self) -> bool:
        """Whether the list has all epochs of the log: no file of the log was deleted yet."""
        return not self._entries or self._entries[0].start == 0

    def begin(self, epoch: int, start: int) -> None:
        """Add the epoch whose master writes from ``start`` on. ProtocolError when it is not after the last epoch."""
        last = self.last
        if last == (epoch, start):
            return
        # The last master wrote no byte: if its entry stayed, two epochs would begin at one offset.
        if last is not None and last.start == start and last.epoch < epoch:
            self._entries.pop()
        self._check(Epoch(epoch, start))
        self._entries.append(Epoch(epoch, start))

    def at(self, offset: int) -> Epoch:
        """The epoch in which the byte at ``offset`` was written, or will be written if it is the next byte."""
        for entry in reversed(self._entries):
            if entry.start <= offset:
                return entry
        raise ProtocolError(f"no epoch is known for offset {offset} of the log")

    def end_of(self, epoch: int, log_end: int) -> int:
        """Where ``epoch`` ends; the last one ends with the log."""
        for entry in self._entries:
            if entry.epoch > epoch:
                return min(entry.start, log_end)
        return log_end

    def cut_to(self, log_end: int) -> None:
        """Forget the epochs that have no byte before ``log_end``, where the log was cut."""
        while self._entries and self._entries[-1].start >= log_end:
            self._entries.pop()

    def forget_before(self, log_start: int) -> None:
        """Forget the epochs that end before ``log_start``, as old files were deleted."""
        # The last epoch stays in any case: it is the epoch of the next byte.
        while len(self._entries) > 1 and self._entries[1].start <= log_start:
            self._entries.pop(0)

    def _check(self, entry: Epoch) -> None:
        last = self.last
        if entry.epoch < 0 or entry.start < 0 or (last and (entry.epoch <= last.epoch or entry.start <= last.start)):
            raise ProtocolError(f"epoch {entry.epoch} from offset {entry.start} cannot follow {tuple(last or ())}")


def common_end(one: Epochs, one_end: int, other: Epochs, other_end: int) -> int | None:
    """Up to where two logs are the same; None when they have no common epoch, so that this cannot be known.

    Two whole logs without a common epoch have nothing in common but their beginning.
    """
    starts = {entry.epoch: entry.start for entry in other}
    # The newest epoch of both with the same start: one master wrote it, so the logs agree from its start to the earlier
    # of its two ends. An epoch of the same number that began elsewhere is not the same one.
    for epoch, start in reversed(list(one)):
        if starts.get(epoch) == start:
            return min(one.end_of(epoch, one_end), other.end_of(epoch, other_end))
    return 0 if one.is_whole and other.is_whole else None


def encode_file(epochs: Epochs) -> bytes:
    lines = "".join(f"{epoch}-{start}\n" for epoch, start in epochs).encode()
    return b"%d\n%d\n" % (len(epochs), crc32(lines) & _CRC_MASK) + lines


def decode_file(data: bytes) -> Epochs:
    """The epochs in a file. ProtocolError when the bytes are not a whole epoch file."""
    try:
        count, crc, *lines = data.decode().splitlines()
        entries = [Epoch(*map(int, line.split("-"))) for line in lines]
        found, expected = int(count), int(crc)
    except (ValueError, TypeError):
        raise ProtocolError("it is not an epoch file: a number of entries, a CRC and lines of epoch-offset") from None
    if found != len(entries):
        raise ProtocolError(f"the epoch file has {len(entries)} of its {found} entries")
    text = "".join(f"{line}\n" for line in lines).encode()
    if expected not in (_UNCHECKED_CRC, crc32(text) & _CRC_MASK):
        raise ProtocolError("the CRC of the epoch file does not fit its entries")
    return Epochs(entries)
