"""The end of a session or of the proxy, which waiting calls must notice."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Ending:
    """Begins once, and then cancels the work that waits."""

    def __init__(self) -> None:
        self._begun = trio.Event()
        self._scopes: set[trio.CancelScope] = set()

    @property
    def has_begun(self) -> bool:
        """Whether the end has begun."""
        return self._begun.is_set()

    def begin(self) -> None:
        """Cancel the work that waits. Another call has no effect."""
        self._begun.set()
        for scope in self._scopes:
            scope.cancel()

    async def wait(self) -> None:
        """Return when the end has begun."""
        await self._begun.wait()

    @contextmanager
    def cancels(self, scope: trio.CancelScope) -> Iterator[None]:
        """A block with work that waits in ``scope``. The end must not have begun before the block."""
        self._scopes.add(scope)
        try:
            yield
        finally:
            self._scopes.discard(scope)
