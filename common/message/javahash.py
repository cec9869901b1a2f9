"""Java's ``String.hashCode``: tag codes and index slots are made of it.

h = sum(unit[i] * 31**(n-1-i)) in 32 bits over the UTF-16 units. The products are summed by C code, and the
two halves of a long key are remembered: unique keys differ in their last four characters only.
"""

from operator import mul

_POWERS_COUNT = 512
_POWERS: tuple[int, ...] = tuple(pow(31, i, 1 << 32) for i in range(_POWERS_COUNT, -1, -1))
_MEMO_LIMIT = 100_000
_TAIL = 4
_TAIL_POWER: int = 31**_TAIL & 0xFFFFFFFF


def _unsigned(units: bytes | list[int]) -> int:
    n = len(units)
    if n <= _POWERS_COUNT:
        total: int = sum(map(mul, units, _POWERS[_POWERS_COUNT + 1 - n :]))
        return total & 0xFFFFFFFF
    h = 0
    for unit in units:
        h = h * 31 + unit & 0xFFFFFFFF
    return h


def java_hash(text: str) -> int:
    """``text.hashCode()`` as Java computes it: a signed 32-bit number."""
    if text.isascii():
        h = _unsigned(text.encode())
    else:
        raw = text.encode("utf-16-be", "surrogatepass")
        h = _unsigned([raw[i] << 8 | raw[i + 1] for i in range(0, len(raw), 2)])
    return h - 0x100000000 if h & 0x80000000 else h


class KeyHasher:
    """Index hashes of many ASCII keys that share their beginnings, as unique keys do.

    Not thread-safe; memory is bounded by ``_MEMO_LIMIT`` short strings for heads and tails each.
    """

    __slots__ = ("_heads", "_tails")

    def __init__(self) -> None:
        self._heads: dict[bytes, int] = {}
        self._tails: dict[bytes, int] = {}

    def index_hash(self, key: bytes) -> int:
        """``abs(hashCode(key))`` as RocketMQ's index stores it (``Integer.MIN_VALUE`` becomes 0)."""
        head = key[:-_TAIL]
        tail = key[-_TAIL:]
        try:
            h = self._heads[head] * _TAIL_POWER + self._tails[tail] & 0xFFFFFFFF
        except KeyError:
            h = self._learn(head, tail)
        if h & 0x80000000:
            return 0x100000000 - h & 0x7FFFFFFF
        return h

    def _learn(self, head: bytes, tail: bytes) -> int:
        if len(tail) < _TAIL or not (head.isascii() and tail.isascii()):
            return java_hash((head + tail).decode("utf-8", "replace")) & 0xFFFFFFFF
        for memo, part in ((self._heads, head), (self._tails, tail)):
            if len(memo) >= _MEMO_LIMIT:
                memo.clear()
            memo[part] = _unsigned(part)
        return self._heads[head] * _TAIL_POWER + self._tails[tail] & 0xFFFFFFFF
