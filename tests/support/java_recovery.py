"""What a Java broker makes of a store directory when it starts, as far as the index goes.

A model of RocketMQ's DefaultMessageStore.load and start, CommitLog.recoverAbnormally and IndexService: which index
files it keeps, from where it reads the log again, and which messages it then puts into the index.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from skylark.broker.store.index.index_file import index_file_bytes
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.layout import BLANK_MAGIC, SIZE_MAGIC
from skylark.mqcommon.message.record import Record, decode_record

MARGIN_MS = 3000


class JavaStart(NamedTuple):
    """Physical offsets: of all messages, of those that the index holds in the end, and where reading began."""

    log: list[int]
    indexed: set[int]
    read_from: int


def start_java(fs: FileSystem, directory: str, slots: int, capacity: int) -> JavaStart:
    """The state of a Java broker after its start on the store in ``directory``."""
    physic, logics, index_ms = struct.unpack_from(">qqq", fs.read(f"{directory}/checkpoint"))
    crashed = fs.exists(f"{directory}/abort")
    indexed: set[int] = set()
    index_end, size = -1, index_file_bytes(slots, capacity)
    for name in fs.listdir(f"{directory}/index"):
        data = fs.read(f"{directory}/index/{name}").ljust(size, b"\0")
        _, end_ms, _, end_physical, _, count = struct.unpack_from(">qqqqii", data)
        if (crashed and end_ms > index_ms) or count <= 1:
            continue
        first = 40 + 4 * slots + 20
        indexed.update(struct.unpack_from(">q", data, first + 20 * n + 4)[0] for n in range(count - 1))
        index_end = end_physical
    log = dict(_log(fs, f"{directory}/commitlog"))
    if crashed:
        read_from = _recovers_from(fs, f"{directory}/commitlog", min(physic, logics) - MARGIN_MS)
    else:
        read_from = max(_queue_ends(fs, f"{directory}/consumequeue"), default=0)
    indexed.update(at for at in log if at >= read_from and at >= index_end)
    return JavaStart([*log], indexed, read_from)


def _recovers_from(fs: FileSystem, directory: str, latest_ms: int) -> int:
    """The newest file whose first message was stored by then; the oldest one when none was."""
    names = fs.listdir(directory)
    for name in reversed(names):
        head = fs.read_part(f"{directory}/{name}", 0, 64)
        (stored_ms,) = struct.unpack_from(">q", head, 56)
        if 0 < stored_ms <= latest_ms:
            return int(name)
    return int(names[0])


def _log(fs: FileSystem, directory: str) -> Iterator[tuple[int, int]]:
    """(physical offset, size) of each message up to the first that is damaged."""
    return ((record.physical_offset, record.size) for record in records_of_log(fs, directory))


def records_of_log(fs: FileSystem, directory: str) -> Iterator[Record]:
    """The messages up to the first that is damaged."""
    for name in fs.listdir(directory):
        data, at = fs.read(f"{directory}/{name}"), 0
        while at + 8 <= len(data):
            size, magic = SIZE_MAGIC.unpack_from(data, at)
            if magic == BLANK_MAGIC:
                break
            try:
                record = decode_record(data, at)
            except ProtocolError:
                return
            yield record
            at += size


def _queue_ends(fs: FileSystem, directory: str) -> Iterator[int]:
    """Where the newest message of each queue ends."""
    for topic in fs.listdir(directory):
        for queue in fs.listdir(f"{directory}/{topic}"):
            for name in fs.listdir(f"{directory}/{topic}/{queue}"):
                for physical, size, _ in struct.iter_unpack(">qiq", fs.read(f"{directory}/{topic}/{queue}/{name}")):
                    if 0 < size < 0x7FFFFFFF:
                        yield physical + size
