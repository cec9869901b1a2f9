"""Work that crosses between an asyncio loop and a trio loop in another thread, in batches (`Inbox`).

What waits is bounded by what the tasks of the application wait for.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from sdk.loop_thread import Inbox, OpenClient, call_each

Work = Callable[[], object]


class Crossing:
    """The loop that opens ``client``, and the loop in which that is open. Work must not raise."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: OpenClient[Any]) -> None:
        self.loop = loop
        self._client = client
        self._for_trio = Inbox(lambda run: client.token.run_sync_soon(run), call_each)
        self._for_asyncio = Inbox(self._wake_asyncio, call_each)

    def to_trio(self, work: Work) -> None:
        """Run ``work`` in trio. Raises RunFinishedError when that loop has ended."""
        self._for_trio.put(work)

    def to_asyncio(self, work: Work) -> None:
        """Run ``work`` in asyncio."""
        self._for_asyncio.put(work)

    def _wake_asyncio(self, run: Callable[[], None]) -> None:
        try:
            self.loop.call_soon_threadsafe(run)
        except RuntimeError:  # the application closed its loop before the client
            self._client.begin_close(_nothing)


def _nothing() -> None:
    """Nobody waits for the end."""
