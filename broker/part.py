"""A part of a broker: what it answers, what runs, and what it does when connections close and turns end.

A broker is an ordered list of parts (wiring.py). The daemon starts them in that order and stops them in the reverse
order. A part overrides what it needs; what it leaves out costs nothing.
"""

from collections.abc import Callable, Collection, Mapping

import trio

from remoting.net.channel import Channel
from remoting.net.server import Handler, SlowHandler
from remoting.net.steps import StepHandler
from remoting.protocol.command import Command

#: Called with the answer before it is sent; None when there is none: the request was oneway, or the connection closed.
Answered = Callable[[Command | None], None]
#: Called before a request is handled. It refuses by raising RequestRefused, or gives the answer itself, or returns a
#: function that is called with the answer.
Hook = Callable[[Channel, Command], Command | Answered | None]


class Part:
    """See the module. No two parts of a broker handle the same request code."""

    #: Codes of `handlers` that may meet bytes which are on disk only: they run again when a thread has read these.
    reads_disk: Collection[int] = ()
    #: Time between two calls of `tick`.
    tick_interval_ms = 0.0

    def handlers(self) -> Mapping[int, Handler]:
        """Requests that need not wait."""
        return {}

    def step_handlers(self) -> Mapping[int, StepHandler]:
        """Requests whose work takes long: in steps, and the loop turns in between."""
        return {}

    def slow_handlers(self) -> Mapping[int, SlowHandler]:
        """Requests that wait: each runs in a task."""
        return {}

    def hook(self, code: int) -> Hook | None:
        """What is to be called before each request ``code``, also a oneway one, whoever handles it."""
        return None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; the parts after this one start when it has started."""
        task_status.started()

    async def stop(self) -> None:
        """The broker stops: the parts after this one have done so already, those before it run as ever."""

    async def close(self) -> None:
        """Nothing runs any more, also after a start that failed."""

    def channel_closed(self, channel: Channel) -> None:
        """A client's connection has ended."""

    def after_turn(self) -> None:
        """The requests of one read from a connection are handled; their answers leave next."""

    def tick(self) -> None:
        """Called every ``tick_interval_ms`` while the broker runs."""
