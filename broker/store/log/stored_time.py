"""When the first record of a log file was stored, read from the first bytes of the file. Pure."""

from mqcommon.message.flags import HOSTS_V6
from mqcommon.message.layout import HEAD_V4, HEADS, MAGIC_V1, MAGIC_V2, STORE_TIME

# The bytes of a file that `stored_ms` needs.
HEAD_BYTES = max(head.ends["store_timestamp"] for head in HEADS.values())
_MAGIC_FLAG = HEAD_V4.reader("magic", "sys_flag")


def stored_ms(head: bytes) -> int | None:
    """When the first record of a file was stored (ms), given the file's head; None if no record begins there."""
    if len(head) < HEAD_BYTES:
        return None
    magic, sys_flag = _MAGIC_FLAG.unpack_from(head)
    return int(STORE_TIME[sys_flag & HOSTS_V6].unpack_from(head)[0]) if magic in (MAGIC_V1, MAGIC_V2) else None
