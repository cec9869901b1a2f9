"""The sans-IO protocol core of one connection: bytes in, commands out; commands in, bytes out.

Contract: ``receive_data`` raises ProtocolError only; anything else is a bug. A stream gives the same commands however
it is split. Nothing is allocated for a length that the peer only claims; an invalid length or header type is refused
as soon as its bytes have arrived. After an error the connection is dead. Commands of the same chunk before the bad
bytes are not returned: to the peer they look like requests that were lost with the connection.
"""

from skylark.mqcommon.errors import ProtocolError
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.foreign import foreign_protocol
from skylark.remoting.protocol.frame import DECODERS, MAX_FRAME_BYTES, MAX_HEADER_BYTES, PREFIX

_unpack_prefix = PREFIX.unpack_from
_PREFIX_BYTES = PREFIX.size
# The body of a longer frame that came in pieces is copied out of the buffer; a shorter frame is copied as a whole.
_LARGE_BYTES = 65_536


class Connection:
    """Parses one peer's stream."""

    __slots__ = ("_dead", "_max_frame_bytes", "_max_header_bytes", "_needed", "_pending")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES, max_header_bytes: int = MAX_HEADER_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._max_header_bytes = max_header_bytes
        self._pending = bytearray()  # the beginning of a frame whose rest has not arrived
        self._needed = _PREFIX_BYTES  # how long _pending must be before it is parsed
        self._dead = False

    @property
    def pending_bytes(self) -> int:
        """The bytes of memory that an incomplete frame takes: its buffer grows ahead of what has arrived."""
        return self._pending.__alloc__()

    @property
    def protocol_of_pending(self) -> str:
        """The protocol that the incomplete frame seems to be of; see foreign.py."""
        return foreign_protocol(bytes(self._pending[:16]))

    def release(self) -> None:
        """Free the buffer: the connection has ended."""
        self._dead = True
        self._pending = bytearray()

    def receive_data(self, data: bytes) -> list[Command]:
        """All commands that are complete with ``data``, in order.

        Raises ProtocolError when the bytes are no commands, or over a limit; the connection is then useless.
        """
        if self._dead:
            raise ProtocolError("the connection has already failed")
        pending = self._pending
        commands: list[Command] = []
        try:
            if pending:
                pending += data
                if len(pending) < self._needed:
                    return commands
                self._pending = bytearray()
                if self._needed > _LARGE_BYTES:
                    command, data = _large(pending, self._needed)
                    commands.append(command)
                else:
                    data = bytes(pending)
                del pending
            self._parse(data, commands)
            return commands
        except ProtocolError:
            self.release()
            raise

    def _parse(self, data: bytes, commands: list[Command]) -> None:
        decoders = DECODERS
        end = len(data)
        at = 0
        needed = _PREFIX_BYTES
        while end - at >= _PREFIX_BYTES:
            size, word = _unpack_prefix(data, at)
            header_bytes = word & 0xFF_FFFF
            header_end = at + _PREFIX_BYTES + header_bytes
            frame_end = at + 4 + size
            decode_header = decoders.get(word >> 24)
            if (
                decode_header is None
                or header_end > frame_end
                or size > self._max_frame_bytes
                or header_bytes > self._max_header_bytes
            ):
                raise ProtocolError(_fault(size, word, self._max_frame_bytes, self._max_header_bytes))
            if frame_end > end:
                # No codec has an empty header: the peer speaks another protocol, and may wait for an answer.
                if not header_bytes:
                    raise ProtocolError("a header has no bytes")
                needed = frame_end - at
                break
            command = decode_header(data[at + _PREFIX_BYTES : header_end])
            if header_end != frame_end:
                command.body = data[header_end:frame_end]
            commands.append(command)
            at = frame_end
        if at != end:
            self._pending += data[at:] if at else data
        self._needed = needed


def _large(pending: bytearray, frame_end: int) -> tuple[Command, bytes]:
    """The frame at the beginning of ``pending``, whose prefix was checked when it arrived; and the bytes after it."""
    _, word = _unpack_prefix(pending)
    header_end = _PREFIX_BYTES + (word & 0xFF_FFFF)
    with memoryview(pending) as view:
        command = DECODERS[word >> 24](bytes(view[_PREFIX_BYTES:header_end]))
        if header_end != frame_end:
            command.body = bytes(view[header_end:frame_end])
        return command, bytes(view[frame_end:])


def _fault(size: int, word: int, max_frame_bytes: int, max_header_bytes: int) -> str:
    if word >> 24 not in DECODERS:
        return f"unknown header type {word >> 24}"
    if size > max_frame_bytes:
        return f"frame of {size} bytes is longer than {max_frame_bytes}"
    if word & 0xFF_FFFF > max_header_bytes:
        return f"header of {word & 0xFF_FFFF} bytes is longer than {max_header_bytes}"
    return f"header of {word & 0xFF_FFFF} bytes does not fit a frame of {size}"
