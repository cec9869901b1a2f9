"""Decompresses bodies before a consumer's caller or handler reads them: else `MessageExt.body` does it in the loop.

What is kept is bounded. Messages past the bound are decompressed when they are read.
"""

from collections.abc import Sequence
from functools import partial

from skylark.mqcommon.message.message import MessageExt, packed_in
from skylark.sdk.consumer.window import LARGE_MEAN_BYTES
from skylark.sdk.runtime import off_loop

# Kept of one pull, besides its last body (of at most compression.MAX_CONTENT_BYTES).
KEPT_BYTES = 32 * 1024 * 1024
# A body that decompresses to less costs less in the loop than in a thread, about 0.1 ms.
INLINE_BYTES = 32 * 1024


async def keep_contents(messages: Sequence[MessageExt], kept_bytes: int = KEPT_BYTES) -> None:
    """Decompress the bodies of ``messages``, which are of one pull; damaged ones raise when they are read."""
    # A look at each message of a large pull of small ones would cost more than decompressing what is among them.
    if not messages or messages[0].held_bytes < LARGE_MEAN_BYTES * len(messages):
        return
    packed = packed_in(messages)
    if len(packed) == 1:
        await keep_content(packed[0])
    elif packed:
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
    """Their handler has finished; what it keeps of them is decompressed again when it is read."""
    for message in messages:
        message.drop_content()
