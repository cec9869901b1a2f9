"""The end of a session or of the proxy, which waiting calls must notice."""

import trio


class Ending:
    """Begins once, and then cancels the work that waits."""

    __slots__ = ("_begun", "scopes")

    def __init__(self) -> None:
        self._begun = trio.Event()
        #: The scopes of the work that waits. Once the end has begun, no scope may be added.
        self.scopes: set[trio.CancelScope] = set()

    @property
    def has_begun(self) -> bool:
        """Whether the end has begun."""
        return self._begun.is_set()

    def begin(self) -> None:
        """Cancel the work that waits. Another call has no effect."""
        self._begun.set()
        for scope in self.scopes:
            scope.cancel()

    async def wait(self) -> None:
        """Return when the end has begun."""
        await self._begun.wait()
