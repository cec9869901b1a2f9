"""What parts need that store messages of their own accord, without a request."""

import logging
from collections.abc import Awaitable, Callable

from skylark.broker.store.store import MessageStore
from skylark.broker.writing.writer import Writer
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import OutOfDescriptors, ProtocolError, RequestRefused, StoreError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.record import Record

# Errors that may happen without a bug in this broker.
_EXPECTED = (RequestRefused, OutOfDescriptors, StoreError, OSError, ProtocolError)


def _never(topic: str, offset: int) -> bool:
    return False


def _uncounted(topic: str, record: Record) -> None:
    pass


@lazy_dataclass(frozen=True, slots=True)
class Background:
    """What a part that stores messages without a client's request works with, while this broker is the master.

    Only a master stores messages: on a slave the log has one writer, the replica.
    """

    store: MessageStore
    writer: Writer
    clock: Clock
    #: Whether the part should work now. Its messages may be refused all the same (writing/admission.py).
    is_active: Callable[[], bool]
    #: Makes the log durable up to its present end.
    flush: Callable[[], Awaitable[None]]
    #: Call it after messages were stored: they were not stored in the turn of a request.
    turned: Callable[[], None]
    #: Whether a message for this topic, stored at this offset of the log, was for a topic that was deleted since.
    is_deleted: Callable[[str, int], bool] = _never
    #: Counts a message that is dropped because its topic was deleted.
    note_dropped: Callable[[str, Record], None] = _uncounted


class Failures:
    """Logs failures of work that is tried again: only the first of each kind, until work of that kind succeeds."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._failing: set[str] = set()

    def failed(self, what: str, error: Exception) -> None:
        """Log that ``what``, for example "offsets are not saved"; with a traceback if the error shows a bug."""
        if what not in self._failing:
            self._failing.add(what)
            exc_info = None if isinstance(error, _EXPECTED) else error
            self._logger.error("%s, still trying: %s", what, error, exc_info=exc_info)

    def succeeded(self, what: str) -> None:
        """Log the next failure of ``what`` again, as this work has succeeded."""
        self._failing.discard(what)
