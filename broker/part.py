"""A part of a broker: the requests it handles, its tasks, and what it does when connections close and turns end.

A broker is an ordered list of parts (wiring/). The daemon starts them in that order and stops them in reverse order.
A part overrides the methods it needs; the others are never called.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import trio

from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, SlowHandler
from skylark.remoting.net.steps import StepHandler
from skylark.remoting.protocol.command import Command

#: Called before a request is handled. It may raise RequestRefused, or return the answer itself.
Hook = Callable[[Channel, Command], Command | None]
#: Raises RequestRefused when the sender of a request may not do to a topic what the request does. Needed for requests
#: that name a message by its place in the log: a hook cannot know the topic of the message.
TopicCheck = Callable[[Channel, Command, str], None]


class Callers(Protocol):
    """Who sends requests, and what a user may do later, when there is no request to check.

    A broker without access control has None instead of this object, and checks nothing.
    """

    def user_of(self, channel: Channel, request: Command) -> str:
        """The user who signed ``request``, which has passed the hooks; empty when nobody has to sign it."""

    def may_send(self, user: str, host: str, topic: str) -> bool:
        """Whether ``user`` may send to ``topic`` from ``host`` now."""


class Part:
    """The base class of parts. No two parts of a broker handle the same request code."""

    #: Codes of `handlers` that may need bytes which are only on disk: they run again after a thread has read the bytes.
    reads_disk: Collection[int] = ()
    #: Time between two calls of `tick`.
    tick_interval_ms = 0.0

    def handlers(self) -> Mapping[int, Handler]:
        """Handlers, by request code, that do not wait."""
        return {}

    def step_handlers(self) -> Mapping[int, StepHandler]:
        """Handlers of long work, by request code: they run in steps, and other tasks run between the steps."""
        return {}

    def slow_handlers(self) -> Mapping[int, SlowHandler]:
        """Handlers that wait, by request code: each request runs in a task."""
        return {}

    def hook(self, code: int) -> Hook | None:
        """A function to call before each request ``code``, also before oneway requests, whichever part handles it."""
        return None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; the parts after this part start when ``task_status`` says that it has started."""
        task_status.started()

    async def stop(self) -> None:
        """Stop. The parts after this part have stopped already; the parts before it still run."""

    async def close(self) -> None:
        """Called when all tasks have ended, also after a start that failed."""

    def channel_closed(self, channel: Channel) -> None:
        """Called when a client's connection has ended."""

    def after_turn(self) -> None:
        """Called when the requests of one read from a connection are handled, before their answers are sent."""

    def tick(self) -> None:
        """Called every ``tick_interval_ms`` while the broker runs."""
