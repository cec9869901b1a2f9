"""The end of a session or of the proxy, which waiting calls must notice."""

import trio


class Ending:
    """Begins once, and then cancels the work that waits."""

    __slots__ = ("_begun", "has_begun", "scopes")

    def __init__(self) -> None:
        self._begun = trio.Event()
        #: Whether the end has begun.
        self.has_begun = False
        #: The scopes of the work that waits. Once the end has begun, no scope may be added.
        self.scopes: set[trio.CancelScope] = set()

    def begin(self) -> None:
        """Cancel the work that waits. Another call has no effect."""
        self.has_begun = True
        self._begun.set()
        for scope in self.scopes:
            scope.cancel()

    async def wait(self) -> None:
        """Return when the end has begun."""
        await self._begun.wait()
