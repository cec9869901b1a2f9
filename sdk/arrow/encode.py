"""The body of a batch send made of columns: the same bytes as `encode_batch` (mqcommon/message/batch.py) makes of rows.

Arrow joins the pieces of each message, so that each byte is copied once. Unique keys differ in their last four digits.
"""

from typing import NamedTuple

import numpy as np

from sdk.arrow import texts
from sdk.arrow.columns import equal_texts, hex_text
from sdk.arrow.records import Ints
from sdk.arrow.table_columns import TableRows

_HEAD = np.dtype([("size", ">i4"), ("magic_crc", ">i8"), ("flag", ">i4"), ("body_length", ">i4")])
_LENGTH = np.dtype(">i2")
_NUMBER = np.dtype(">u2")
# The digits of a key's number, and the end of the property.
_KEY_END_BYTES = 2 * _NUMBER.itemsize + 1


class Encoded(NamedTuple):
    """Messages, one after another, and where each of them ends."""

    data: memoryview
    ends: Ints


def encode(part: TableRows, key_head: bytes, first_key: int) -> Encoded:
    r"""The messages of ``part``. Their unique keys are ``key_head``, a number from ``first_key`` on and ``\x02``."""
    rows = len(part.bodies)
    body_lengths = texts.lengths(part.bodies)
    own_lengths: Ints | int = 0 if part.properties is None else texts.lengths(part.properties)
    property_lengths = np.broadcast_to(own_lengths + len(key_head) + _KEY_END_BYTES, rows)
    heads = np.zeros(rows, _HEAD)
    heads["size"] = sizes = _HEAD.itemsize + body_lengths + _LENGTH.itemsize + property_lengths
    heads["body_length"] = body_lengths
    if part.flags is not None:
        heads["flag"] = part.flags
    key_numbers = (np.arange(first_key, first_key + rows) & 0xFFFF).astype(_NUMBER)
    joined = texts.joined(
        equal_texts(heads.view(np.uint8), _HEAD.itemsize, rows, texts.BINARY),
        part.bodies,
        equal_texts(property_lengths.astype(_LENGTH).view(np.uint8), _LENGTH.itemsize, rows, texts.BINARY),
        *(() if part.properties is None else (part.properties,)),
        key_head,
        hex_text(key_numbers.view(np.uint8).reshape(rows, _NUMBER.itemsize)).view(texts.BINARY),
        b"\x02",
    )
    ends = np.cumsum(sizes)
    return Encoded(memoryview(joined.buffers()[2])[: int(ends[-1])], ends)
