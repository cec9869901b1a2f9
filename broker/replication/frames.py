"""The bytes of RocketMQ's HA link, read incrementally. Pure.

 slave to master    offset 8                        how far the slave's log goes; the first one: where to begin
 master to slave    offset 8 | size 4 | data        a piece of the log; size 0 is a heartbeat

A slave reports every few seconds and after each append. Between Skylark brokers the report `LEAVING` says that the
slave is about to stop; the master answers with a heartbeat when it has sent all that sends wait for. Other bytes raise
ProtocolError.
Neighbours: hello.py (the handshake of Skylark brokers before that), link.py.
"""

import struct
from typing import NamedTuple

from skylark.mqcommon.errors import ProtocolError

REPORT_BYTES = 8
HEADER_BYTES = 12
# RocketMQ's haTransferBatchSize; a Java slave has a buffer of 4 MiB.
PLAIN_CHUNK_BYTES = 32 * 1024
CHUNK_BYTES = 1024 * 1024
# A report of a slave that is about to stop.
LEAVING = -1
MAX_CHUNK_BYTES = 4 * 1024 * 1024

_REPORT = struct.Struct(">q")
_HEADER = struct.Struct(">qi")


class LogPiece(NamedTuple):
    """Bytes of the log at ``offset``. Empty: a heartbeat, whose offset is where the master will go on."""

    offset: int
    data: memoryview


def encode_report(offset: int) -> bytes:
    return _REPORT.pack(offset)


def encode_header(offset: int, size: int) -> bytes:
    """The header before ``size`` bytes of the log."""
    return _HEADER.pack(offset, size)


class ReportReader:
    """Reads what a slave sends."""

    def __init__(self) -> None:
        self._rest = b""

    def receive(self, data: bytes) -> list[int]:
        """The offsets that ``data`` completes."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT_BYTES
        self._rest = data[whole:]
        return [offset for (offset,) in _REPORT.iter_unpack(data[:whole])]


class FrameReader:
    """Reads what a master sends. Pieces are returned as soon as their bytes arrive; only headers are buffered."""

    def __init__(self) -> None:
        self._header = b""
        self._offset = 0
        self._left = 0

    def receive(self, data: bytes | memoryview) -> list[LogPiece]:
        """Pieces of the log and heartbeats, in order; a frame may come in several pieces. ProtocolError on garbage.

        Pieces are parts of ``data``, not copies.
        """
        pieces: list[LogPiece] = []
        view = memoryview(data)
        at, end = 0, len(data)
        while at < end:
            if not self._left:
                need = HEADER_BYTES - len(self._header)
                self._header += view[at : at + need]
                at += need
                if len(self._header) < HEADER_BYTES:
                    break
                self._begin(pieces)
                continue
            size = min(self._left, end - at)
            pieces.append(LogPiece(self._offset, view[at : at + size]))
            self._offset += size
            self._left -= size
            at += size
        return pieces

    def _begin(self, pieces: list[LogPiece]) -> None:
        offset, size = _HEADER.unpack(self._header)
        self._header = b""
        if offset < 0 or not 0 <= size <= MAX_CHUNK_BYTES:
            raise ProtocolError(f"{size} bytes at offset {offset} are not a piece of a commit log")
        self._offset, self._left = offset, size
        if not size:
            pieces.append(LogPiece(offset, memoryview(b"")))
