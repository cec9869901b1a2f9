"""The sums of queues and index files on disk: one small file, replaced as a whole.

File ``sums/derived``: crc of the rest 4 | CBOR [version, queues, index files]

A queue is [is batch queue, topic, queue id, first block, rows], an index file is [name, first block, rows]. The rows
come from `GrowingSums.rows`. There is a row for each block from the first block on: bytes that the sum covers 4 |
CRC-32 4. The file may be old, wrong or missing: then more than needed is compared with the log, and the store is right
all the same.
"""

from collections.abc import Sequence
from typing import NamedTuple

import cbor2

from skylark.mqcommon.disk.atomic import read_with_crc, write_with_crc
from skylark.mqcommon.disk.files import FileSystem

DIRECTORY = "sums"
FILE_NAME = f"{DIRECTORY}/derived"
_VERSION = 1


class QueueRows(NamedTuple):
    """The sums of a queue: the ``rows`` of its blocks from block ``first`` on."""

    is_batch: bool
    topic: str
    queue_id: int
    first: int
    rows: bytes


class IndexRows(NamedTuple):
    """The sums of the index file ``name``."""

    name: str
    first: int
    rows: bytes


class DerivedRows(NamedTuple):
    """All that is in the file."""

    queues: Sequence[QueueRows] = ()
    index_files: Sequence[IndexRows] = ()


def write_sums(fs: FileSystem, directory: str, rows: DerivedRows) -> None:
    """Replace the file in the store ``directory``. Blocks. DiskFull and OSError leave it as it was."""
    fs.mkdirs(f"{directory}/{DIRECTORY}")
    data = cbor2.dumps([_VERSION, [list(each) for each in rows.queues], [list(each) for each in rows.index_files]])
    write_with_crc(fs, f"{directory}/{FILE_NAME}", data)


def read_sums(fs: FileSystem, directory: str) -> DerivedRows:
    """The contents of the file; nothing if it is missing, damaged, of another version, or cannot be read."""
    try:
        data = read_with_crc(fs, f"{directory}/{FILE_NAME}")
    except OSError:
        return DerivedRows()
    if data is None:
        return DerivedRows()
    version, *tables = cbor2.loads(data)
    if version != _VERSION:
        return DerivedRows()
    queues, index_files = tables
    return DerivedRows([QueueRows(*row) for row in queues], [IndexRows(*row) for row in index_files])
