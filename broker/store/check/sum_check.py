"""Compares the log with the sums of its blocks: also bytes that no record's CRC covers, as properties, times and hosts.

Neighbours: verify.py (the records), store/sums/ (the sums).
"""

from collections.abc import Callable, Iterator

from skylark.broker.store.log.log_files import LogFiles
from skylark.broker.store.sums.block_sums import BlockSums
from skylark.broker.store.sums.sum_files import SumFiles, path_in
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.disk.files import FileSystem

WRONG_FILE = "it is damaged, or of another layout; the next start drops it"
WRONG_BLOCK = (
    "the bytes have changed since they were sealed, though no record's CRC tells which; a broker that runs beside its"
    " replicas repairs them"
)


class SumCheck:
    """The sums of the store in ``root``, whose log files have ``file_bytes`` each."""

    def __init__(self, fs: FileSystem, root: str, file_bytes: int) -> None:
        self._sums = BlockSums(file_bytes)
        self._wrong = [path_in(root, base) for base in SumFiles(fs, root, self._sums, file_bytes).read()]

    def wrong_files(self) -> Iterator[tuple[str, int, str]]:
        """(path, 0, what is wrong) of each file of sums that cannot be used."""
        return ((path, 0, WRONG_FILE) for path in self._wrong)

    def wrong_blocks(
        self, log: LogFiles, log_end: int, on_progress: Callable[[int], None]
    ) -> Iterator[tuple[str, int, int]]:
        """(path, from, to) of each sealed block of ``log``, which ends at ``log_end``, that does not match its sum.

        ``on_progress`` gets the physical offset up to which blocks were compared.
        """
        for file in log.files:
            end = min(file.end, log_end)
            for block in self._sums.blocks(file.base, end):
                own, at = self._sums.sum_of(block), block.start - file.base
                if own is None or block.end > end:
                    continue
                file.load(at, block.size)
                if large_crc32(file.view[at : at + block.size]) != own.crc:
                    yield file.path, at, at + block.size
                on_progress(block.end)
