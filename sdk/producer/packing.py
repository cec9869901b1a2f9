"""Compresses large bodies before they are sent; very large ones in a thread."""

import trio

from mqcommon.arguments import INT_MAX, check_int, check_text
from mqcommon.message.compression import COMPRESSIONS, check_compression, compressed
from mqcommon.message.message import Message

# RocketMQ's clients compress bodies that are longer.
COMPRESS_OVER_BYTES = 4 * 1024
# Compressing more than this would hold up the event loop for about a millisecond.
THREAD_BYTES = 64 * 1024


class PackedMessage(Message):
    """A message whose body is compressed; ``sys_flag`` says how."""

    __slots__ = ("sys_flag",)

    def __init__(self, message: Message, body: bytes, sys_flag: int) -> None:
        super().__init__(message.topic, body, flag=message.flag)
        self.properties = message.properties
        self.sys_flag = sys_flag


class Packing:
    """How one producer compresses. ``over_bytes``: longer bodies are compressed; more than any has without it."""

    def __init__(self, compression: str | None, over_bytes: int) -> None:
        check_int("compress_over_bytes", over_bytes, 0, INT_MAX)
        if compression is not None:
            check_text("compression", compression)
            check_compression("compression", compression)
        self._sys_flag = COMPRESSIONS[compression] if compression is not None else 0
        self.over_bytes = over_bytes if compression is not None else INT_MAX

    async def packed(self, message: Message) -> Message:
        """The message to send: a compressed one, or ``message`` itself when that is shorter."""
        body, sys_flag = message.body, self._sys_flag
        if len(body) <= self.over_bytes:
            return message
        if len(body) > THREAD_BYTES:
            packed = await trio.to_thread.run_sync(compressed, body, sys_flag)
        else:
            packed = compressed(body, sys_flag)
        return message if len(packed) >= len(body) else PackedMessage(message, packed, sys_flag)
