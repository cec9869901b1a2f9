"""Decompresses bodies before a caller or handler reads them: otherwise `MessageExt.body` decompresses in the loop.

The bytes of decompressed bodies are bounded. Bodies past the bound are decompressed when they are read.
"""

from collections.abc import Sequence
from functools import partial

from skylark.mqcommon.message.message import MessageExt, packed_in
from skylark.sdk.consumer.window import LARGE_MEAN_BYTES
from skylark.sdk.runtime import off_loop

# Decompressed bytes kept of one pull, besides its last body (of at most compression.MAX_CONTENT_BYTES).
KEPT_BYTES = 32 * 1024 * 1024
# A body that decompresses to fewer bytes is cheaper to decompress in the loop (about 0.1 ms) than in a thread.
INLINE_BYTES = 32 * 1024


def need_decompression(messages: Sequence[MessageExt]) -> bool:
    """Whether `keep_contents` has bodies to decompress."""
    # For a large pull of small messages, checking each message would cost more than decompressing the few packed ones.
    return bool(messages) and messages[0].held_bytes >= LARGE_MEAN_BYTES * len(messages) and bool(packed_in(messages))


async def keep_contents(messages: Sequence[MessageExt], kept_bytes: int = KEPT_BYTES) -> None:
    """Decompress the bodies of ``messages``, which are of one pull; damaged ones raise when they are read.

    Stops once the decompressed bodies have ``kept_bytes``: the others are decompressed when they are read.
    """
    if not need_decompression(messages):
        return
    packed = packed_in(messages)
    if len(packed) == 1:
        await keep_content(packed[0])
    else:
        await off_loop(partial(_keep, packed, kept_bytes))


async def keep_content(message: MessageExt) -> None:
    """Decompress the body of ``message``, which is compressed."""
    if not message.keep_small_content(INLINE_BYTES):
        await off_loop(message.keep_content)


def _keep(messages: Sequence[MessageExt], left: int) -> None:
    for message in messages:
        left -= message.keep_content()
        if left <= 0:
            return


def drop_contents(messages: Sequence[MessageExt]) -> None:
    """Drop decompressed bodies, as the handler has finished. A body that is read later is decompressed again."""
    for message in messages:
        message.drop_content()
