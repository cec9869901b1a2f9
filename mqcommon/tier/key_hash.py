"""The hash of a message's key in a segment's keys: 64 bits, alike for one key and, by numpy, for columns of keys.

Two keys may have one hash, so a reader compares the key of the message that it finds.
Neighbours: gather.py (hashes columns), keys.py (the object), view.py (looks keys up).
"""

from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORD_BYTES = 8
_MULTIPLIER, _MASK, _SHIFT = 0x9E3779B97F4A7C15, 2**64 - 1, 32


@lru_cache(maxsize=1_024)
def topic_seed(topic: str) -> int:
    """The number from which the hashes of the keys of ``topic`` are made."""
    return int.from_bytes(blake2b(topic.encode(), digest_size=WORD_BYTES).digest(), "little")


def key_hash(topic: str, key: bytes) -> int:
    """The hash of ``key``, a unique key or one word of KEYS, of a message of ``topic``."""
    found = topic_seed(topic)
    for at in range(0, len(key), WORD_BYTES):
        found = _mixed(found ^ int.from_bytes(key[at : at + WORD_BYTES], "little"))
    return _mixed(found ^ len(key))


def key_hashes(
    data: "NDArray[np.uint8]", starts: "NDArray[np.int64]", lengths: "NDArray[np.int64]", seeds: "NDArray[np.uint64]"
) -> "NDArray[np.uint64]":
    """As `key_hash`, of the keys that begin at ``starts`` of ``data``; ``seeds`` are from `topic_seed`.

    ``data`` has at least `WORD_BYTES` more bytes after the last key.
    """
    import numpy as np

    from skylark.mqcommon.message.overlapping import overlapping

    words = overlapping(data, "<u8")
    found = seeds.copy()
    most = int(lengths.max(initial=0))
    whole = int(lengths.min(initial=most)) // WORD_BYTES * WORD_BYTES
    if whole:
        # The words that all keys have, side by side.
        begins = overlapping(data, np.dtype((np.void, whole)))[starts].view("<u8").reshape(-1, whole // WORD_BYTES)
        for word in begins.T:
            found ^= word
            _mix(found)
    for at in range(whole, most, WORD_BYTES):
        rows = np.flatnonzero(lengths > at)
        left = np.minimum(lengths[rows] - at, WORD_BYTES).astype(np.uint64)
        # ``left`` is 1 to 8, so no shift is by 64 bits, which is not defined.
        unused = (np.uint64(WORD_BYTES) - left) * np.uint64(8)
        some = found[rows] ^ words[starts[rows] + at] << unused >> unused
        _mix(some)
        found[rows] = some
    found ^= lengths.astype(np.uint64)
    _mix(found)
    return found


def _mixed(value: int) -> int:
    value = value * _MULTIPLIER & _MASK
    return value ^ value >> _SHIFT


def _mix(values: "NDArray[np.uint64]") -> None:
    """As `_mixed`, of each of ``values``, in place."""
    import numpy as np

    values *= np.uint64(_MULTIPLIER)
    values ^= values >> np.uint64(_SHIFT)
