"""When the record that a file of the log begins with was stored, read from the first bytes of the file. Pure."""

from mqcommon.message.flags import HOSTS_V6
from mqcommon.message.layout import HEAD_V4, HEADS, MAGIC_V1, MAGIC_V2, STORE_TIME

# What of a file `stored_ms` needs to see.
HEAD_BYTES = max(head.ends["store_timestamp"] for head in HEADS.values())
_MAGIC_FLAG = HEAD_V4.reader("magic", "sys_flag")


def stored_ms(head: bytes) -> int | None:
    """When the record that a file begins with was stored; None when there is none."""
    if len(head) < HEAD_BYTES:
        return None
    magic, sys_flag = _MAGIC_FLAG.unpack_from(head)
    return int(STORE_TIME[sys_flag & HOSTS_V6].unpack_from(head)[0]) if magic in (MAGIC_V1, MAGIC_V2) else None
