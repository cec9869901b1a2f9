"""One step of a scrub, in a thread: reads blocks of a log file from the medium, and compares them with their sums.

Neighbours: scrub.py (chooses the blocks, and acts on what was found); record_pass.py (blocks without sums).
"""

from collections.abc import Sequence
from dataclasses import field
from typing import NamedTuple

from skylark.broker.healing.record_pass import RecordPass, Unsound
from skylark.broker.store.sums.block_sums import Block, BlockSums
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

MISSING = "the file is missing"


class WrongBlock(NamedTuple):
    """A block that cannot be read from the medium, or does not match its sum there; ``reason`` says which."""

    block: Block
    reason: str


@lazy_dataclass(slots=True)
class BlocksRead:
    """What a step has found. ``sound``: blocks without a sum all of whose records are sound, with their CRCs.

    ``unsound``: bytes that no sound record holds.
    """

    wrong: list[WrongBlock] = field(default_factory=list)
    sound: list[tuple[Block, int]] = field(default_factory=list)
    unsound: list[Unsound] = field(default_factory=list)


def read_blocks(
    fs: FileSystem, path: str, base: int, blocks: Sequence[Block], sums: BlockSums, records: RecordPass | None
) -> BlocksRead:
    """Check ``blocks`` of the file ``path``, whose first byte is at ``base``. Blocks; for a thread.

    ``records``: reads the records of the blocks, too, and has read the blocks before them.
    """
    found = BlocksRead()
    for block in blocks:
        reason = ""
        try:
            data = fs.read_direct(path, block.start - base, block.size)
        except FileNotFoundError:
            data, reason = b"", MISSING
        except OSError as error:
            data, reason = b"", f"cannot be read: {error.strerror or error}"
        else:
            if len(data) < block.size:
                reason = f"the file ends within it, after {block.start - base + len(data):,} bytes"
        crc = large_crc32(data)
        kept = sums.sum_of(block)
        if kept is not None and (reason or kept.crc != crc):
            found.wrong.append(WrongBlock(block, reason or "does not match its sum"))
        if records is not None:
            # Bytes that cannot be read are no record, as zeros are none.
            sound, unsound = records.feed(block, crc, data + bytes(block.size - len(data)))
            found.unsound += unsound
            if not reason:
                found.sound += sound
    return found
