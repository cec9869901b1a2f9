"""Java's ``String.hashCode``, which tag codes and index slots use.

h = sum(unit[i] * 31**(n-1-i)) in 32 bits over the UTF-16 units. C code sums the products, and the hashes of parts of
long keys are cached, because unique keys mostly differ in their last four characters only.
"""

from operator import mul

_POWERS_COUNT = 512
_POWERS: tuple[int, ...] = tuple(pow(31, i, 1 << 32) for i in range(_POWERS_COUNT, -1, -1))
_MAX_HEADS = 4096
# Longer keys are rare, and would make the cache large.
_MAX_HEAD = 256
# The last characters of a key, in two pairs: a counter in hex has 65,536 endings but only 256 pairs, which are cached.
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


def powers_of_31(count: int) -> tuple[int, ...]:
    """The powers of 31 below ``count``, the highest first, in 32 bits: the weights of the characters of a key."""
    return tuple(pow(31, power, 1 << 32) for power in range(count - 1, -1, -1))


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

    The hash of a key is the sum of the parts of its head and of its last two pairs of characters, which are cached.
    Not thread-safe; memory is bounded by ``_MAX_HEADS`` short strings.
    """

    __slots__ = ("_heads", "high", "low")

    def __init__(self) -> None:
        self._heads = _Heads()
        # The second last pair, and the last.
        self.high = _Pairs(31 * 31)
        self.low = _Pairs(1)

    def index_hash(self, key: bytes) -> int:
        """``abs(hashCode(key))`` as RocketMQ's index stores it (``Integer.MIN_VALUE`` becomes 0)."""
        try:
            h = self._heads[key[:-4]] + self.high[key[-4:-2]] + self.low[key[-2:]] & 0xFFFFFFFF
        except KeyError:
            h = java_hash(key.decode("utf-8", "replace")) & 0xFFFFFFFF
        if h & 0x80000000:
            return 0x100000000 - h & 0x7FFFFFFF
        return h


def head_hash(head: bytes) -> int:
    """The part of the hash from the characters before the tail. Raises KeyError when they are not plain ASCII."""
    if not head.isascii():
        raise KeyError(head)
    return _unsigned(head) * _TAIL_POWER & 0xFFFFFFFF


class _Heads(dict[bytes, int]):
    def __missing__(self, head: bytes) -> int:
        found = head_hash(head)
        if len(head) <= _MAX_HEAD:
            if len(self) >= _MAX_HEADS:
                self.clear()
            self[head] = found
        return found


class _Pairs(dict[bytes, int]):
    """Two characters -> what they add to the hash; KeyError when they are not two plain ASCII characters."""

    def __init__(self, power: int) -> None:
        self._power = power

    def __missing__(self, pair: bytes) -> int:
        if len(pair) != 2 or not pair.isascii() or min(pair) < 0x20:
            raise KeyError(pair)
        # There are no more than 128 * 128 of them.
        self[pair] = found = (pair[0] * 31 + pair[1]) * self._power
        return found
