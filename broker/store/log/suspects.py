"""Which bytes of a damaged block may be wrong, as far as its CRC and its records show. Pure.

Properties, times and hosts of a record have no checksum of their own. When a block was given up, readers get its sound
messages all the same, so it must be known which ones these are. A CRC tells which byte was changed, if only one was:
there is hardly ever a second byte whose change explains the difference, too. If more bytes were changed, mostly a body
does not match its CRC, or a head is none; readers see that for themselves. Otherwise each byte of the block is suspect.
Neighbours: compared.py (reads the block), queue/entry_repair.py (skips the messages).
"""

from zlib import crc32

from skylark.broker.store.log.valid_record import valid_record
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, MIN_RECORD, SIZE_MAGIC

# From a byte to its effect on a CRC register, and from the highest byte of such an effect back to the byte.
_EFFECTS = [(crc32(bytes([byte])) ^ crc32(b"\0")) for byte in range(256)]
_BYTES = {effect >> 24: byte for byte, effect in enumerate(_EFFECTS)}
_BACK = [(_EFFECTS[_BYTES[high]], _BYTES[high]) for high in range(256)]
# More candidates than this say nothing.
_FEW = 2


def changed_bytes(found: int, wanted: int, size: int) -> list[int]:
    """The places in ``size`` bytes with the CRC-32 ``found`` at which one other byte would give them ``wanted``."""
    effects = frozenset(_EFFECTS[1:])
    register, places = found ^ wanted, []
    for place in range(size - 1, -1, -1):
        if register in effects:
            places.append(place)
        # As it was one byte earlier, if the byte since then was right.
        effect, byte = _BACK[register >> 24]
        register = ((register ^ effect) << 8 | byte) & 0xFFFFFFFF
    return places[::-1]


def suspects(data: bytes, base: int, start: int, wanted: int) -> list[tuple[int, int]]:
    """The ranges of the log that may be wrong in the block that starts at ``start``; none if its records show that.

    ``data``: the log from ``base``, which is not after ``start``, to the end of the block. ``wanted``: its CRC-32.
    """
    block = memoryview(data)[start - base :]
    places = changed_bytes(large_crc32(block), wanted, len(block))
    if 0 < len(places) <= _FEW:
        return [(start + place, start + place + 1) for place in places]
    return [] if _has_unsound(data, base, start) else [(start, base + len(data))]


def _has_unsound(data: bytes, base: int, start: int) -> bool:
    """Whether a record that has bytes of the block is not sound by itself."""
    at = 0
    # The first record may begin before ``data``.
    while at + MIN_RECORD <= len(data) and _record_size(data, at, base) <= 0:
        at += 1
    while at + BLANK_BYTES <= len(data):
        size, magic = SIZE_MAGIC.unpack_from(data, at)
        if magic == BLANK_MAGIC:
            return False
        if at + size > len(data):
            return False  # it goes on in the next block, or the size is wrong
        size = _record_size(data, at, base)
        if size <= 0:
            return True
        at += size
    return False


def _record_size(data: bytes, at: int, base: int) -> int:
    """The size of the sound record at ``at`` of ``data``; 0 if there is none."""
    size, _ = SIZE_MAGIC.unpack_from(data, at)
    if not MIN_RECORD <= size <= len(data) - at:
        return 0
    record, _ = valid_record(data[at : at + size], base + at)
    return 0 if record is None else record.size
