"""The bodies of op messages, which say which halves are over: their queue offsets, "12,15,". Pure.

RocketMQ 5 writes a comma after each offset; version 4 wrote one offset alone.
"""

from collections.abc import Iterator, Sequence

# RocketMQ's limit of a body.
MAX_BODY_BYTES = 4_096
# So many offsets surely fit.
OFFSETS_IN_A_BODY = MAX_BODY_BYTES // 20
#: The properties of an op message.
PROPERTIES = b"TAGS\x01d\x02"


def bodies(offsets: Sequence[int]) -> Iterator[tuple[bytes, int]]:
    """The bodies that name these halves, and the highest offset in each."""
    for start in range(0, len(offsets), OFFSETS_IN_A_BODY):
        part = offsets[start : start + OFFSETS_IN_A_BODY]
        yield b"".join([b"%d," % offset for offset in part]), max(part)


def offsets_in(body: bytes) -> list[int]:
    """The halves that a body names; what is not a number is left out."""
    return [int(text) for text in body.split(b",") if text.isdigit() and len(text) < 20]
