"""A whole frame, and the choice of header codec.

 4 bytes   1 byte       3 bytes         H bytes   N-4-H bytes
 length N  header type  header length H header    body

N counts all bytes after it. The peer's Netty limits N + 4 to 16 MiB.
"""

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Final

from skylark.mqcommon.errors import FrameTooLarge
from skylark.remoting.protocol import cbor_header, json_header, rocketmq_header
from skylark.remoting.protocol.command import CBOR, JSON, ROCKETMQ, Command

MAX_FRAME_BYTES: Final = 16_777_216
MAX_HEADER_BYTES: Final = 0xFF_FFFF

PREFIX: Final = Struct(">iI")  # length N; header type and header length in one word

_ENCODERS: Final[Mapping[int, Callable[[Command], bytes]]] = {
    JSON: json_header.encode_header,
    ROCKETMQ: rocketmq_header.encode_header,
    CBOR: cbor_header.encode_header,
}
DECODERS: Final[Mapping[int, Callable[[bytes], Command]]] = {
    JSON: json_header.decode_header,
    ROCKETMQ: rocketmq_header.decode_header,
    CBOR: cbor_header.decode_header,
}


def encode(command: Command, max_frame_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """The frame of ``command`` in its own header type. Raises FrameTooLarge when it is over the limit."""
    head = encode_head(command, max_frame_bytes)
    return head + command.body if command.body else head


def encode_head(command: Command, max_frame_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """The frame of ``command`` up to its body. Raises FrameTooLarge when the frame is over the limit."""
    codec = command.codec
    header = _ENCODERS[codec](command)
    header_size = len(header)
    size = 4 + header_size + len(command.body)
    if size + 4 > max_frame_bytes or header_size > MAX_HEADER_BYTES:
        raise FrameTooLarge(size + 4, max_frame_bytes)
    return PREFIX.pack(size, codec << 24 | header_size) + header
