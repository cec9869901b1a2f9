"""What the parts need that store messages of their own accord, not for a request."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from broker.store.store import MessageStore
from broker.writing.writer import Writer
from mqcommon.clock import Clock


@dataclass(frozen=True, slots=True)
class Background:
    """The store, and leave to put messages into it while this broker is the master.

    Only a master stores messages: on a slave the log has one writer, the replica.
    """

    store: MessageStore
    writer: Writer
    clock: Clock
    #: Whether messages may be stored now.
    is_active: Callable[[], bool]
    #: Makes the log durable up to its present end.
    flush: Callable[[], Awaitable[None]]
    #: Call it after messages were stored, as that is not the turn of a request.
    turned: Callable[[], None]
