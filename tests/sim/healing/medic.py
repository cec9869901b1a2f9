"""A healer for a simulation, until the product's can be put in: the same judgement, without sockets."""

from collections.abc import Awaitable, Callable, Sequence
from zlib import crc32

from skylark.broker.healing import judgement
from skylark.broker.healing.judgement import Copy
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.disk.files import FileSystem


class Medic:
    def __init__(self, log: CommitLog, fs: FileSystem, others: Callable[[Block], Awaitable[Sequence[Copy]]]) -> None:
        self._log = log
        self._fs = fs
        self._others = others

    def in_memory(self, block: Block) -> bytes:
        segment = self._log.chain.at(block.start)
        return b"" if segment is None else segment.file.pread(block.start - segment.base, block.size)

    def on_disk(self, block: Block) -> bytes:
        segment = self._log.chain.at(block.start)
        assert segment is not None
        try:
            return self._fs.read_direct(segment.path, block.start - segment.base, block.size)
        except OSError:
            return b""

    def is_right_in_memory(self, block: Block) -> bool:
        return self._log.sums.is_right(block, self.in_memory(block))

    def is_right(self, block: Block) -> bool:
        sums = self._log.sums
        return self.is_right_in_memory(block) and all(sums.is_right(block, self.on_disk(block)) for _ in range(2))

    def has_sound_records(self, block: Block) -> bool:
        data = self.on_disk(block)
        found = judgement.sound_records(block.start, data, self._log.chain.segment_bytes)
        return data == self.in_memory(block) and sum(len(each.data) for each in found) == block.size

    async def heal(self, block: Block) -> bool:
        log = self._log
        segment = log.chain.at(block.start)
        if segment is None:
            return True
        own = log.sums.sum_of(block)
        copies = [Copy("disk", block.start, data, own, is_own=True) for data in (self.on_disk(block), self.in_memory(block)) if data]
        copies += await self._others(block)
        verdict = judgement.judge(block, own, copies, log.chain.segment_bytes)
        if verdict.right is None or not verdict.is_whole:
            return False
        segment.file.pwrite(block.start - segment.base, memoryview(verdict.right))
        segment.file.sync()
        crc = crc32(verdict.right)
        if own is not None and own.crc != crc:
            log.sums.replace(block, crc, is_attested=False)
        return self.on_disk(block) == verdict.right
