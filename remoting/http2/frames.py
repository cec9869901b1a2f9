"""The layout of frames, and frames that a server sends.

 3 bytes   1 byte  1 byte  1 bit     31 bits    N bytes
 length N  kind    flags   reserved  stream id  payload

Stream 0 is the connection. Streams of clients have odd numbers.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from skylark.remoting.http2.errors import ErrorCode

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

FRAME_HEAD: Final = Struct(">IBI")  # length and kind in one word; flags; stream id
FRAME_HEAD_BYTES: Final = FRAME_HEAD.size
SETTING: Final = Struct(">HI")
WORD: Final = Struct(">I")

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

# What holds until the other side's SETTINGS say otherwise (RFC 9113, 6.5.2).
FIRST_WINDOW_BYTES: Final = 65_535
FIRST_FRAME_BYTES: Final = 16_384
FIRST_TABLE_BYTES: Final = 4_096
MAX_FRAME_BYTES: Final = 2**24 - 1
MAX_WINDOW_BYTES: Final = 2**31 - 1
MAX_STREAM_ID: Final = 2**31 - 1

PING_BYTES: Final = 8


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return FRAME_HEAD.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(key, value) for key, value in values))


def window_update(stream_id: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, WORD.pack(size))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, WORD.pack(code))


def goaway(last_stream_id: int, code: ErrorCode, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, WORD.pack(last_stream_id) + WORD.pack(code) + text.encode())


def header_frames(stream_id: int, block: bytes, flags: int, max_frame_bytes: int) -> bytes:
    """A header block as HEADERS with ``flags``, and CONTINUATION where it is longer than one frame."""
    parts = [block[at : at + max_frame_bytes] for at in range(0, len(block), max_frame_bytes)] or [b""]
    kinds = [(HEADERS, flags), *[(CONTINUATION, 0)] * (len(parts) - 1)]
    kinds[-1] = kinds[-1][0], kinds[-1][1] | END_HEADERS
    return b"".join(frame(*kind, stream_id, part) for kind, part in zip(kinds, parts, strict=True))
