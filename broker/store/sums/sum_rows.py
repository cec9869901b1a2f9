"""Sums of blocks as two replicas tell them to each other (request 7160). Pure.

One row for each block, in their order:

 state 1 (0 no sum, 1 sealed, 2 attested) | CRC-32 4, big-endian
"""

import struct
from collections.abc import Iterable

from skylark.broker.store.sums.block_sums import BlockSum
from skylark.mqcommon.errors import ProtocolError

_ROW = struct.Struct(">BI")
_NONE, _SEALED, _ATTESTED = range(3)


def encode_rows(sums: Iterable[BlockSum | None]) -> bytes:
    """The rows of ``sums``; None is a block without a sum."""
    return b"".join(
        _ROW.pack(_NONE, 0) if each is None else _ROW.pack(_ATTESTED if each.is_attested else _SEALED, each.crc)
        for each in sums
    )


def decode_rows(rows: bytes) -> list[BlockSum | None]:
    """The sums of the blocks. Raises ProtocolError."""
    if len(rows) % _ROW.size:
        raise ProtocolError(f"sums of blocks: {len(rows)} bytes are no multiple of {_ROW.size}")
    sums: list[BlockSum | None] = []
    for state, crc in _ROW.iter_unpack(rows):
        if state > _ATTESTED:
            raise ProtocolError(f"sums of blocks: {state} is not a state of a block")
        sums.append(None if state == _NONE else BlockSum(crc, state == _ATTESTED))
    return sums
