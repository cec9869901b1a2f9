"""The sessions of this process, each in a thread of its own, and calls from kombu's threads to them.

A child of a fork has its parent's objects, but not the threads: it opens a session of its own when it first needs one.
So a Celery worker may fork its pool before or after it has connected.
"""

import threading
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import TypeVar

from skylark.mqcommon.errors import ConnectionLost
from skylark.mqcommon.message.message import Message
from skylark.sdk.integrations.kombu.names import TransportSettings
from skylark.sdk.integrations.kombu.session import ClusterSession
from skylark.sdk.loop_thread import Inbox, OpenClient, call_each
from skylark.sdk.runtime import FORKS

T = TypeVar("T")


@dataclass(eq=False)
class SharedSession:
    """An open session and how many connections use it."""

    settings: TransportSettings
    opened: OpenClient[ClusterSession]
    users: int = 0
    inbox: Inbox[Callable[[], object]] = field(init=False)

    def __post_init__(self) -> None:
        self.inbox = Inbox(self._soon, call_each)

    @property
    def is_usable(self) -> bool:
        """Whether the session is open, in this process."""
        return self.opened.home.is_here and not self.opened.has_ended

    def call(self, work: Callable[[ClusterSession], Awaitable[T]]) -> T:
        """Run ``work`` in the loop of the session and wait for it."""
        # In an empty context: tasks that ``work`` starts outlive the caller's trace, and must not belong to it.
        return Context().run(self.send, work)

    def send(self, work: Callable[[ClusterSession], Awaitable[T]]) -> T:
        """As `call`, in the caller's context, so that a message that ``work`` sends is a part of the caller's trace."""
        if not self.is_usable:
            raise ConnectionLost("the session with the cluster has ended")
        return self.opened.call(work)

    def post(self, *works: Callable[[], object]) -> None:
        """Run ``works``, which must not raise, in the loop soon. Does nothing when the session has ended."""
        if self.is_usable:
            for work in works:
                self.inbox.put(work)

    def send_soon(self, message: Message) -> None:
        """Send the message without waiting."""
        session = self.opened.client
        self.post(lambda: session.send_soon(message))

    def _soon(self, work: Callable[[], None]) -> None:
        self.opened.soon(work)


class Sessions:
    """One session for all connections with the same settings."""

    def __init__(self) -> None:
        self._forks = FORKS.count
        self._lock = threading.Lock()
        self._shared: dict[TransportSettings, SharedSession] = {}

    def acquire(self, settings: TransportSettings, start_timeout_ms: int) -> SharedSession:
        """Open a session, or share one. Raises the errors of opening it."""
        if self._forks != FORKS.count:
            # The parent's lock may have been held during the fork, and its sessions are the parent's.
            self._forks, self._lock, self._shared = FORKS.count, threading.Lock(), {}
        with self._lock:
            shared = self._shared.get(settings)
            if shared is None or not shared.is_usable:
                opened: OpenClient[ClusterSession] = OpenClient(ClusterSession(settings, start_timeout_ms))
                opened.open()
                shared = self._shared[settings] = SharedSession(settings, opened)
            shared.users += 1
            return shared

    def release(self, shared: SharedSession) -> None:
        """Close the session if this was its last user. Does nothing with a session of the parent process."""
        if not shared.opened.home.is_here:
            return
        with self._lock:
            shared.users -= 1
            if shared.users:
                return
            if self._shared.get(shared.settings) is shared:
                del self._shared[shared.settings]
        shared.opened.close()


#: The sessions of this process.
SESSIONS = Sessions()
