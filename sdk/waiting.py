"""Reads that are retried until their timeout, so that a restart of a server delays them but raises no error."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from mqcommon.backoff import Backoff
from mqcommon.errors import SkylarkError
from sdk.retry import is_transient

T = TypeVar("T")


async def until_answered(call: Callable[[], Awaitable[T]], timeout_ms: float, backoff: Backoff) -> T:
    """The result of ``call``. It is called again after transient errors, until the timeout."""
    deadline = trio.current_time() + timeout_ms / 1000
    failures = 0
    while True:
        try:
            return await call()
        except SkylarkError as error:
            left_s = deadline - trio.current_time()
            if left_s <= 0 or not is_transient(error):
                raise
        failures += 1
        await trio.sleep(min(backoff.pause_s(failures), left_s))
