"""Which messages of a queue match a function of their properties.

Only the lengths in a record's head are read, and its properties, where they lie. Bodies are not touched, and messages
that do not match cost no object but the copy of their properties.
Neighbours: reader.py (reads a queue), filter.py (the function).
"""

from collections.abc import Iterable
from mmap import mmap

from broker.store.filter import Matches
from broker.store.queue.entry import BLANK_SIZE
from mqcommon.message.flags import HOSTS_V6
from mqcommon.message.layout import HEAD_V4, HEADS
from mqcommon.message.record import topic_field

# The properties of messages that one read looks at; it ends after the message that goes beyond.
MAX_PROPERTIES_BYTES = 512 * 1024

_LENGTHS_V4 = HEAD_V4.reader("sys_flag", "body_length").unpack_from
_LENGTHS = {bits: (head.reader("body_length").unpack_from, head.size) for bits, head in HEADS.items()}
_HEAD_BYTES_V4 = HEAD_V4.size
_LENGTH_BYTES = 2

#: An entry of a queue: physical offset, size, tag code.
Entry = tuple[int, int, int]


def matching(
    data: bytes | mmap, base: int, entries: Iterable[Entry], topic: str, matches: Matches, most: int
) -> list[Entry | None]:
    """For each entry that was looked at: the entry if its message matches, else None.

    ``data`` holds the bytes of the log from ``base`` on, with all messages of ``entries``. The search ends when
    ``most`` bytes of properties were seen.
    """
    found: list[Entry | None] = []
    add = found.append
    seen, v6, unpack, head_bytes = 0, HOSTS_V6, _LENGTHS_V4, _HEAD_BYTES_V4
    # Behind the body: the topic, the length of the properties, and these up to the end of the record.
    between = len(topic_field(topic)[1]) + _LENGTH_BYTES
    for entry in entries:
        physical, size, _ = entry
        if size == BLANK_SIZE:
            add(None)
            continue
        at = physical - base
        sys_flag, body_bytes = unpack(data, at)
        if sys_flag & v6:
            unpack_length, start = _LENGTHS[sys_flag & v6]
            start += at + unpack_length(data, at)[0] + between
        else:
            start = at + head_bytes + body_bytes + between
        add(entry if matches(b"\x02%b\x02" % data[start : at + size]) else None)
        seen += at + size - start
        if seen > most:
            break
    return found
