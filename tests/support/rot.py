"""Every way to damage a file that a test goes through: (where, what the file holds then).

A run that is not nightly tries a share of the places.
"""

from collections.abc import Callable, Iterator

from tests.support.amounts import share_of

Ways = Callable[[bytes], Iterator[tuple[int, bytes]]]


def cut_anywhere(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every shorter beginning; of many that end in the same zeros the shortest and the longest."""
    last = len(data) - 1
    for at in share_of(at for at in range(len(data)) if at == last or any(data[max(at - 1, 0) : at + 1])):
        yield at, data[:at]


def zeroed_anywhere(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Zeros from each byte on that is none."""
    for at in share_of(at for at in range(len(data)) if data[at]):
        yield at, data[:at] + bytes(len(data) - at)


def flipped_anywhere(data: bytes) -> Iterator[tuple[int, bytes]]:
    """One bit of each byte that holds something, or stands beside such a byte."""
    for at in share_of(at for at in range(len(data)) if any(data[max(at - 1, 0) : at + 2])):
        yield at, data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]


def zeros_after(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Zeros after the end, as a power loss or the repair of a file system leaves them: some bytes, or whole blocks."""
    for count in share_of((1, 4, 7, 8, 9, 12, 16, 40, -len(data) % 512, -len(data) % 4096, 8192), 3):
        yield len(data), data + bytes(count)
