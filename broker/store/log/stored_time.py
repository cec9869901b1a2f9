"""When the record that a file of the log begins with was stored, read from the first bytes of the file. Pure."""

import struct

from mqcommon.message.flags import BORN_HOST_V6
from mqcommon.message.record import MAGIC_V1, MAGIC_V2, SIZE_MAGIC, STORE_TIMESTAMP_V4_AT, SYS_FLAG_AT

# What of a file `stored_ms` needs to see.
HEAD_BYTES = STORE_TIMESTAMP_V4_AT + 12 + 8
_SYS_FLAG = struct.Struct(">i")
_LONG = struct.Struct(">q")


def stored_ms(head: bytes) -> int | None:
    """When the record that a file begins with was stored; None when there is none."""
    if len(head) < HEAD_BYTES or SIZE_MAGIC.unpack_from(head)[1] not in (MAGIC_V1, MAGIC_V2):
        return None
    v6 = _SYS_FLAG.unpack_from(head, SYS_FLAG_AT)[0] & BORN_HOST_V6
    return int(_LONG.unpack_from(head, STORE_TIMESTAMP_V4_AT + (12 if v6 else 0))[0])
