"""Compresses large bodies before they are sent; very large bodies in a thread.

Sends to one queue keep their order. So while a body for a topic is compressed in a thread, later sends to that topic
that name their queue wait for the compression: see `Packing.packed`.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

import trio

from skylark.mqcommon.arguments import INT_MAX, check_bytes, check_int, check_text
from skylark.mqcommon.errors import InvalidArgument, SendFailed
from skylark.mqcommon.message.compression import COMPRESSIONS, LEVEL, check_compression, compressed
from skylark.mqcommon.message.message import Message
from skylark.sdk.runtime import off_loop

# RocketMQ's clients compress bodies that are longer.
COMPRESS_OVER_BYTES = 4 * 1024
COMPRESSION_LEVEL = LEVEL
# The levels of zlib; Zstandard's higher levels cost a hundred times as much.
LOWEST_LEVEL, HIGHEST_LEVEL = 1, 9
# Compressing more than this would hold up the event loop for about a millisecond.
THREAD_BYTES = 64 * 1024
# Every body is longer than this: each send checks for waiting sends.
_EVERY = -1


def check_body(name: str, body: bytes, max_bytes: int) -> None:
    """TypeError unless ``body`` is bytes; InvalidArgument when it is larger than ``max_bytes``."""
    if not isinstance(body, bytes):
        check_bytes(name, body)
    if len(body) > max_bytes:
        raise InvalidArgument(f"{name} has {len(body)} bytes, at most {max_bytes} are allowed")


class PackedMessage(Message):
    """A message whose body is compressed; ``sys_flag`` says how, ``plain_bytes`` is the body's length before."""

    __slots__ = ("plain", "plain_bytes", "sys_flag")

    def __init__(self, message: Message, body: bytes, sys_flag: int) -> None:
        super().__init__(message.topic, body, flag=message.flag)
        self.properties = message.properties
        self.sys_flag = sys_flag
        self.plain = message
        self.plain_bytes = len(message.body)


class Packing:
    """How one producer compresses: bodies longer than ``over_bytes``, or no bodies without ``compression``.

    Bodies may have ``most_bytes``. ``set_plain_bytes`` is called with the length up to which the producer need not call
    `packed`; while sends wait for their turn, every message needs `packed`.
    """

    def __init__(
        self,
        compression: str | None,
        over_bytes: int,
        level: int,
        most_bytes: int,
        set_plain_bytes: Callable[[int], None],
    ) -> None:
        check_int("compress_over_bytes", over_bytes, 0, INT_MAX)
        check_int("compression_level", level, LOWEST_LEVEL, HIGHEST_LEVEL)
        if compression is not None:
            check_text("compression", compression)
            check_compression("compression", compression)
        self._sys_flag = COMPRESSIONS[compression] if compression is not None else 0
        self._level = level
        self._most_bytes = most_bytes
        self._over_bytes = over_bytes if compression is not None else INT_MAX
        self._plain_bytes = min(most_bytes, self._over_bytes)
        self._set_plain_bytes = set_plain_bytes
        # By topic: the ordered sends in their order; the first of them may go on.
        self._lines: dict[str, deque[trio.Event]] = {}
        set_plain_bytes(self._plain_bytes)

    async def packed(self, message: Message, timeout_s: float, *, is_ordered: bool) -> tuple[Message, float]:
        """The message to send (compressed, or ``message`` itself when that is shorter), and the time that is left.

        Messages of a topic with ``is_ordered`` are returned in the order of the calls. Raises SendFailed when the time
        is over.
        """
        check_body("message.body", message.body, self._most_bytes)
        if not self.waits(message, is_ordered=is_ordered):
            return self.pack(message), timeout_s
        began = trio.current_time()
        with trio.move_on_after(timeout_s):
            if is_ordered:
                packed = await self._pack_in_turn(message)
            else:
                packed = await off_loop(partial(self.pack, message))
            return packed, timeout_s - (trio.current_time() - began)
        raise SendFailed(f"message for {message.topic} was not sent: its body was not compressed in time")

    def waits(self, message: Message, *, is_ordered: bool) -> bool:
        """Whether `packed` would wait, for a thread or for its turn. If not, `pack` does the same."""
        return self._is_large(message) or (is_ordered and message.topic in self._lines)

    def pack(self, message: Message) -> Message:
        """The message to send; see `packed`."""
        body, sys_flag = message.body, self._sys_flag
        if len(body) <= self._over_bytes:
            return message
        packed = compressed(body, sys_flag, self._level)
        return message if len(packed) >= len(body) else PackedMessage(message, packed, sys_flag)

    def _is_large(self, message: Message) -> bool:
        return self._over_bytes < len(message.body) > THREAD_BYTES

    async def _pack_in_turn(self, message: Message) -> Message:
        topic, turn = message.topic, trio.Event()
        line = self._lines.setdefault(topic, deque())
        # Bodies are compressed in parallel, in threads. Only the returns are in order: a small message waits here for
        # an earlier large message.
        line.append(turn)
        self._set_plain_bytes(_EVERY)
        try:
            is_large = self._is_large(message)
            packed = await off_loop(partial(self.pack, message)) if is_large else self.pack(message)
            if line[0] is not turn:
                await turn.wait()
            return packed
        finally:
            # A cancelled send may leave from the middle of the line; then the first send stays the first.
            line.remove(turn)
            if line:
                line[0].set()
            else:
                del self._lines[topic]
                if not self._lines:
                    self._set_plain_bytes(self._plain_bytes)
