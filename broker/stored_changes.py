"""Changes of metadata that must be on disk before they are answered."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from mqcommon.errors import RequestRefused, StoreError
from remoting.protocol.codes import ResponseCode

#: Returns when all changes so far survive power loss; raises StoreError when that cannot be.
Durable = Callable[[], Awaitable[None]]


@contextmanager
def refused_when_not_stored() -> Iterator[None]:
    """Refuse a change that could not be written, with the reason; otherwise it would be logged with a traceback."""
    try:
        yield
    except StoreError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"not changed: {error}") from error
