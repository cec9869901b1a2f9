"""What a scrub keeps over restarts: file ``scrub`` in the store.

crc of the rest 4 | CBOR [cycle, lastBeganMs, lastEndedMs, suspects]

``cycle`` is null or [first, stop, at, beganMs, isSecondPart], as in `Cycle`; ``suspects`` are the starts of blocks that
are to be checked first. Nothing depends on the file: without it, or when it is damaged, a new cycle begins.
"""

from collections.abc import Sequence

import cbor2

from skylark.broker.healing.scrub_cycle import Cycle
from skylark.mqcommon.disk.atomic import read_with_crc, write_with_crc
from skylark.mqcommon.disk.files import FileSystem, ReadableFiles
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

FILE_NAME = "scrub"


@lazy_dataclass(frozen=True, slots=True)
class ScrubNote:
    """``cycle``: None between two cycles. ``last_began_ms``: when the last cycle began that has ended."""

    cycle: Cycle | None = None
    last_began_ms: int = 0
    last_ended_ms: int = 0
    suspects: Sequence[int] = ()


def read_note(fs: ReadableFiles, directory: str) -> ScrubNote:
    """The note in the store ``directory``."""
    data = read_with_crc(fs, f"{directory}/{FILE_NAME}")
    if data is None:
        return ScrubNote()
    try:
        cycle, began_ms, ended_ms, suspects = cbor2.loads(data)
        return ScrubNote(Cycle(*cycle) if cycle else None, began_ms, ended_ms, tuple(suspects))
    except (ValueError, TypeError, cbor2.CBORError):
        return ScrubNote()  # another version's


def write_note(fs: FileSystem, directory: str, note: ScrubNote) -> None:
    """Replace the note. Blocks; DiskFull, OSError."""
    cycle = note.cycle
    fields = cycle and [cycle.first, cycle.stop, cycle.at, cycle.began_ms, cycle.is_second_part]
    data = cbor2.dumps([fields, note.last_began_ms, note.last_ended_ms, list(note.suspects)])
    write_with_crc(fs, f"{directory}/{FILE_NAME}", data)
