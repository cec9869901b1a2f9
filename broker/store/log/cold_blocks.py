"""Blocks of queue and index files that a thread reads, and compares with their sums, before anybody uses them."""

from contextlib import suppress

from skylark.broker.store.log.residency import NotResident, Span
from skylark.broker.store.sums.block_sums import BLOCK_BYTES
from skylark.broker.store.sums.growing_sums import GrowingSums
from skylark.mqcommon.disk.files import MappedFile
from skylark.mqcommon.errors import FileClosed


class ColdBlocks(NotResident):
    """The blocks that hold ``size`` bytes from ``at`` on of ``file``, which begins at ``base`` of its chain."""

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
