"""Messages in the bytes of a call. Pure; broken bytes and messages above the limit raise GrpcError.

+------------+----------------+---------------------+
| compressed | length: uint32 | length bytes ...    |
| 1 byte     | big-endian     |                     |
+------------+----------------+---------------------+
"""

import struct
import zlib
from collections import deque
from typing import Final

from skylark.remoting.grpc.statuses import GrpcError, StatusCode

PREFIX: Final = struct.Struct(">BI")
PREFIX_BYTES: Final = PREFIX.size
# Bound once: Python 3.11 calls it faster.
_pack_prefix = PREFIX.pack
# zlib's code for the format of gzip.
_GZIP: Final = 31


def framed(*messages: bytes, gzip: bool = False) -> bytes:
    """``messages``, each with its prefix; ``gzip``: compressed."""
    if gzip:
        messages = tuple([zlib.compress(message, wbits=_GZIP) for message in messages])
    parts: list[bytes] = []
    for message in messages:
        parts += (_pack_prefix(gzip, len(message)), message)
    return b"".join(parts)


def whole_message(data: bytes, max_bytes: int) -> bytes | None:
    """The message if ``data`` is one whole message without compression, of at most ``max_bytes``."""
    size = len(data) - PREFIX_BYTES
    if 0 <= size <= max_bytes and not data[0] and int.from_bytes(data[1:PREFIX_BYTES]) == size:
        return data[PREFIX_BYTES:]
    return None


class MessageReader:
    """Cuts the bytes of one direction into messages of at most ``max_bytes``; ``gzip``: they may be compressed.

    ``messages`` are the whole ones, which `take` takes out. A reader that has raised an error must not be fed again.
    """

    __slots__ = ("_buffer", "_gzip", "_max_bytes", "_whole_bytes", "messages")

    def __init__(self, max_bytes: int, *, gzip: bool = False) -> None:
        self._max_bytes = max_bytes
        self._gzip = gzip
        self._buffer = bytearray()
        self.messages: deque[bytes] = deque()
        self._whole_bytes = 0  # of `messages`

    @property
    def pending_bytes(self) -> int:
        """The bytes of the message that is not whole yet."""
        return len(self._buffer)

    @property
    def buffered_bytes(self) -> int:
        """All bytes in memory."""
        return len(self._buffer) + self._whole_bytes

    def take(self) -> bytes:
        """Take out the first whole message; there must be one."""
        message = self.messages.popleft()
        self._whole_bytes -= len(message)
        return message

    def feed(self, data: bytes) -> None:
        """Read the next bytes."""
        buffer = self._buffer
        buffer += data
        at, end = 0, len(buffer)
        while end - at >= PREFIX_BYTES:
            compressed, size = PREFIX.unpack_from(buffer, at)
            if compressed > 1 or (compressed and not self._gzip):
                raise GrpcError(StatusCode.INTERNAL, f"a message has flag {compressed}, without a grpc-encoding for it")
            # Before the message is there: a peer must not fill the memory up to the limit in vain.
            if size > self._max_bytes:
                raise _too_large(size, self._max_bytes)
            start = at + PREFIX_BYTES
            if end - start < size:
                break
            at = start + size
            message = bytes(memoryview(buffer)[start:at])
            if compressed:
                message = _expanded(message, self._max_bytes)
            self.messages.append(message)
            self._whole_bytes += len(message)
        if at:
            del buffer[:at]


def _too_large(size: int, max_bytes: int) -> GrpcError:
    """The error for a message of ``size`` bytes; official clients know the beginning of its text."""
    return GrpcError(StatusCode.RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {max_bytes})")


def _expanded(message: bytes, max_bytes: int) -> bytes:
    """The text of a compressed message. Expands at most one byte above the limit."""
    expander = zlib.decompressobj(_GZIP)
    try:
        text = expander.decompress(message, max_bytes + 1)
    except zlib.error as error:
        raise GrpcError(StatusCode.INTERNAL, f"a compressed message is broken: {error}") from None
    if len(text) > max_bytes:
        raise _too_large(len(text), max_bytes)
    if not expander.eof or expander.unused_data:
        raise GrpcError(StatusCode.INTERNAL, "a compressed message is broken: it does not end where its text ends")
    return text
