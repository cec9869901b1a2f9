"""Turn the parts of a broker into what its server needs: one handler per request code, one function per event.

`ClientPort` and `OpenConnections` are the port for clients. Methods that a part does not override are never called, and
a handler without hooks is used unwrapped.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

import trio

from skylark.broker.part import Hook, Part
from skylark.mqcommon.errors import ConfigError
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, Server, SlowHandler
from skylark.remoting.net.steps import Stepper
from skylark.remoting.net.transport import Listener
from skylark.remoting.protocol.command import Command

logger = logging.getLogger(__name__)


def handlers_of(
    parts: Sequence[Part],
    stepper: Stepper,
    guarded: Callable[[Handler], Handler],
    translating: Callable[[int, Handler], Handler] = lambda code, handler: handler,
) -> tuple[dict[int, Handler], dict[int, SlowHandler]]:
    """(handlers, slow handlers) by code. ConfigError when two parts handle one code.

    ``guarded`` wraps a handler so that it does not wait for the disk in the event loop. ``translating`` wraps the
    result, by code. Hooks see a request before it is translated.
    """
    quick: dict[int, Handler] = {}
    slow: dict[int, SlowHandler] = {}
    owners: dict[int, Part] = {}
    for part in parts:
        tables: tuple[Mapping[int, object], ...] = (part.handlers(), part.step_handlers(), part.slow_handlers())
        for code in [code for table in tables for code in table]:
            if code in owners:
                names = f"{type(owners[code]).__name__} and {type(part).__name__}"
                raise ConfigError(f"two parts of the broker handle request {code}: {names}")
            owners[code] = part
        for code, handler in part.handlers().items():
            quick[code] = translating(code, guarded(handler) if code in part.reads_disk else handler)
        slow |= stepper.handlers(part.step_handlers()) | dict(part.slow_handlers())
    # Hooks are outermost, also around handlers that read the disk: a hook sees a request once, however often the
    # handler runs.
    hooking = [part for part in parts if type(part).hook is not Part.hook]
    for code in owners:
        if hooks := [hook for part in hooking if (hook := part.hook(code)) is not None]:
            if code in quick:
                quick[code] = hooked(quick[code], hooks)
            else:
                slow[code] = hooked_slow(slow[code], hooks)
    return quick, slow


def hooked(handler: Handler, hooks: Sequence[Hook]) -> Handler:
    """``handler`` after ``hooks``, in order; the first answer of a hook is the answer."""

    def call(channel: Channel, request: Command) -> Command | None:
        for hook in hooks:
            if (response := hook(channel, request)) is not None:
                return response
        return handler(channel, request)

    return call


def hooked_slow(handler: SlowHandler, hooks: Sequence[Hook]) -> SlowHandler:
    """Like `hooked`, for a handler that waits."""

    async def call(channel: Channel, request: Command) -> Command | None:
        for hook in hooks:
            if (response := hook(channel, request)) is not None:
                return response
        return await handler(channel, request)

    return call


def closed_of(parts: Sequence[Part]) -> Callable[[Channel], None]:
    """A function that calls ``channel_closed`` of every part, even when one of them fails."""
    calls = [part.channel_closed for part in parts if overrides(part, "channel_closed")]

    def closed(channel: Channel) -> None:
        for call in calls:
            try:
                call(channel)
            except Exception:
                logger.exception("%s failed for the closed connection of %s", call.__qualname__, channel.remote)

    return closed


class TurnEnd:
    """Call it at the end of a turn: it calls ``after_turn`` of every part, in order."""

    def __init__(self) -> None:
        self._calls: tuple[Callable[[], None], ...] = ()

    def serve(self, parts: Sequence[Part]) -> None:
        """Set the parts to call."""
        self._calls = tuple(part.after_turn for part in parts if overrides(part, "after_turn"))

    def __call__(self) -> None:
        for call in self._calls:
            call()


def overrides(part: Part, name: str) -> bool:
    """Whether the class of ``part`` overrides the method ``name``."""
    return getattr(type(part), name) is not getattr(Part, name)


DRAIN_TIMEOUT_MS = 2_000


class OpenConnections(Part):
    """Drains the connections of clients. Its stop returns when all answers are sent, or after `DRAIN_TIMEOUT_MS`."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def stop(self) -> None:
        await self._server.drain(DRAIN_TIMEOUT_MS)


class ClientPort(Part):
    """Accepts clients on ``listeners``.

    Requests are refused as soon as this part stops. The parts between it and `OpenConnections` then answer requests in
    flight, and `OpenConnections` waits until these answers have been sent.
    """

    def __init__(self, server: Server, listeners: Sequence[Listener]) -> None:
        self._server = server
        self._listeners = list(listeners)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled: open connections are still served after `stop`."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._server.serve_on, self._listeners)
            task_status.started()

    async def stop(self) -> None:
        self._server.stop_accepting()
