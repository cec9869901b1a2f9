"""How good input is broken: bits, numbers at their limits, pieces that are missing, repeated or from other input."""

from random import Random

MAX_BYTES = 1 << 16
_NUMBERS = (b"\0", b"\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff" * 8, b"\0\0\0\0", b"\x7f" + b"\xff" * 7)
_TEXTS = (
    b"null", b"{", b"}", b"[", b'"', b":", b",", b"-1", b"1e999", b"9" * 25, b"\\u", b"\xf0\x9f", b"\n", b"\x01",
    b"\x02", b" ", b"%", b"@", b"*", b"&a ", b"- ", b"'", b"(", b" OR ", b"0.0.0.0/0", b"\\",
)  # fmt: skip


def mutated(random: Random, corpus: list[bytes]) -> bytes:
    """One of ``corpus``, changed in some places."""
    data = bytearray(random.choice(corpus))
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        start = random.randrange(len(data) + 1)
        end = min(start + random.choice((1, 1, 2, 4, 8, 64)), len(data))
        kind = random.randrange(7)
        if kind == 0 and start < len(data):
            data[start] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[start:end] = random.choice(_NUMBERS)
        elif kind == 2:
            data[start:end] = random.choice(_TEXTS)
        elif kind == 3:
            del data[start:end]
        elif kind == 4:
            data[start:start] = data[start:end] * random.choice((1, 2, 50))
        elif kind == 5:
            other = random.choice(corpus)
            cut = random.randrange(len(other) + 1)
            data[start:] = other[cut:]
        else:
            data[start:end] = random.randbytes(random.choice((1, 4, 16)))
    return bytes(data[:MAX_BYTES])
