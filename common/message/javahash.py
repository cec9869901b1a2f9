"""Java's ``String.hashCode``: tag codes and index slots are made of it.

h = sum(unit[i] * 31**(n-1-i)) in 32 bits over the UTF-16 units. The products are summed by C code, and the
two halves of a long key are remembered: unique keys differ in their last four characters only.
"""

from operator import mul

_POWERS_COUNT = 512
_POWERS: tuple[int, ...] = tuple(pow(31, i, 1 << 32) for i in range(_POWERS_COUNT, -1, -1))
_MAX_HEADS = 4096
_MAX_TAILS = 100_000
TAIL = 4
_TAIL_POWER: int = 31**TAIL & 0xFFFFFFFF


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

    The hash of a key is that of its head, as `head_hash` gives it, plus that of its last ``TAIL`` characters.
    Not thread-safe; memory is bounded by ``_MAX_HEADS`` and ``_MAX_TAILS`` short strings.
    """

    __slots__ = ("_heads", "tails")

    def __init__(self) -> None:
        self._heads: dict[bytes, int] = {}
        # A counter in hex has 65,536 of them.
        self.tails: dict[bytes, int] = {}

    def index_hash(self, key: bytes) -> int:
        """``abs(hashCode(key))`` as RocketMQ's index stores it (``Integer.MIN_VALUE`` becomes 0)."""
        head = key[:-TAIL]
        tail = key[-TAIL:]
        try:
            h = self._heads[head] + self.tails[tail] & 0xFFFFFFFF
        except KeyError:
            h = self._learn(head, tail)
        if h & 0x80000000:
            return 0x100000000 - h & 0x7FFFFFFF
        return h

    def head_hash(self, head: bytes) -> int:
        """What an ASCII key's characters before its tail add to its hash."""
        return _unsigned(head) * _TAIL_POWER & 0xFFFFFFFF

    def learn_tails(self, tails: set[bytes]) -> bool:
        """Put ``tails`` into the table of that name; False when one of them ends no plain ASCII key."""
        if len(self.tails) + len(tails) > _MAX_TAILS:
            self.tails.clear()
        for tail in tails:
            if tail in self.tails:
                continue
            if len(tail) != TAIL or not tail.isascii() or min(tail) < 0x20:
                return False
            self.tails[tail] = _unsigned(tail)
        return True

    def _learn(self, head: bytes, tail: bytes) -> int:
        if not head.isascii() or not self.learn_tails({tail}):
            return java_hash((head + tail).decode("utf-8", "replace")) & 0xFFFFFFFF
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        self._heads[head] = self.head_hash(head)
        return self._heads[head] + self.tails[tail] & 0xFFFFFFFF
