"""What must hold after each event. It knows all that was ever written, confirmed and acknowledged in one history."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from skylark.broker.replication.autoswitch.frames import EpochPiece
from tests.sim.controller.disk import RECORD_BYTES, Disk


class Stretch(NamedTuple):
    """The bytes that the master of one epoch wrote."""

    writer: str
    start: int
    data: bytearray


class Copy(Protocol):
    """A broker, as far as the checks look at it."""

    name: str
    disk: Disk
    #: Where its log ended when a loss of power took from it what it may have reported; 0 without such a loss.
    had: int

    @property
    def epoch(self) -> int:
        """The epoch of the master that this broker is or follows."""


class Checks:
    """``final``: all that was ever confirmed somewhere: consumers may have seen it, it must stay for ever."""

    def __init__(self) -> None:
        self.final = bytearray()
        #: Losses that the settings allow: an unclean election, or ASYNC_FLUSH and a loss of power.
        self.may_lose = False
        self.lost_records = 0
        #: The epoch of the last election that the Controllers agreed upon.
        self.present_epoch = 0
        self.acked = 0
        self.cuts = 0
        self._forgiven_until_epoch = -1
        self._written: dict[int, Stretch] = {}
        self._acked_in: dict[int, str] = {}

    # What brokers do.

    def wrote(self, copy: Copy, epoch: int, start: int, at: int, data: bytes) -> None:
        """A master appended."""
        stretch = self._written.setdefault(epoch, Stretch(copy.name, start, bytearray()))
        assert stretch.writer == copy.name, f"{copy.name} writes in epoch {epoch} of {stretch.writer}"
        assert at % RECORD_BYTES == 0, f"{copy.name} writes at {at}, after a part of a record"
        assert stretch.start == start, f"epoch {epoch} begins at {start}, and began at {stretch.start}"
        assert start + len(stretch.data) == at, f"{copy.name} writes at {at} of epoch {epoch} a second time"
        stretch.data.extend(data)

    def copied(self, copy: Copy, piece: EpochPiece) -> None:
        """A slave appended."""
        stretch = self._written[piece.epoch]
        assert stretch.start == piece.epoch_start
        written = stretch.data[piece.offset - stretch.start :][: len(piece.data)]
        assert piece.offset == copy.disk.end and written == piece.data, (
            f"{copy.name} has other bytes at {piece.offset} than epoch {piece.epoch}"
        )

    def cut(self, copy: Copy, offset: int) -> None:
        """A slave cut its log to follow another master. `members` sees whether it needed what it cut."""
        self.cuts += 1

    def confirmed(self, copy: Copy, offset: int) -> None:
        """Consumers of this broker see everything before ``offset``."""
        log, known = copy.disk.log, len(self.final)
        assert offset <= len(log), f"{copy.name} shows {offset} of a log that ends at {len(log)}"
        if copy.epoch <= self._forgiven_until_epoch:
            return
        # Nobody sees a part of a record, and a new master cuts it off.
        offset -= offset % RECORD_BYTES
        both = min(offset, known)
        assert log[:both] == self.final[:both], f"{copy.name} shows before {offset} what is not in the final log"
        self.final += log[known:offset]

    def acknowledged(self, copy: Copy, record: bytes, end: int, *, by_all: bool) -> None:
        """A master answered SUCCESS for the record that ends at ``end``."""
        leader = self._acked_in.setdefault(copy.epoch, copy.name)
        assert leader == copy.name, f"{leader} and {copy.name} acknowledge in epoch {copy.epoch}"
        assert copy.epoch == self.present_epoch, (
            f"{copy.name} acknowledges in epoch {copy.epoch} while the Controllers have {self.present_epoch}"
        )
        self.acked += 1
        where = self.final if by_all else copy.disk.log
        assert where[end - len(record) : end] == record, f"{copy.name} acknowledges what is not there before {end}"

    # What the Controller does.

    def elected(self, copy: Copy, epoch: int, *, is_unclean: bool) -> None:
        """``copy`` is the master of ``epoch``: what it lacks is lost."""
        if is_unclean:
            # An earlier master may not know that it is none: what it shows is lost, too.
            self._forgiven_until_epoch = max(epoch - 1, self._forgiven_until_epoch)
        log = copy.disk.log
        common = next((at for at, byte in enumerate(self.final) if at >= len(log) or log[at] != byte), len(self.final))
        if common == len(self.final):
            return
        common -= common % RECORD_BYTES
        assert self.may_lose, (
            f"{copy.name} was elected, but lacks what was confirmed: it has {common} of {len(self.final)} bytes"
        )
        self.lost_records += (len(self.final) - common) // RECORD_BYTES
        self._forgiven_until_epoch = max(epoch - 1, self._forgiven_until_epoch)
        del self.final[common:]

    def members(self, in_sync: Sequence[Copy]) -> None:
        """Each member of the SyncStateSet can be elected now."""
        final = self.final
        for copy in in_sync:
            has_all = copy.disk.log.startswith(final)
            if has_all and copy.disk.end >= copy.had:
                copy.had = 0  # reports that are on their way hold again, too
            if not has_all and not copy.had:
                raise AssertionError(
                    f"{copy.name} is in the SyncStateSet and lacks some of {len(final)} confirmed bytes;"
                    f" its log ends at {copy.disk.end}"
                )

    def leases(self, holders: list[str]) -> None:
        assert len(holders) < 2, f"{' and '.join(holders)} hold the lease at once"
