"""`Ticket`: what `Producer.send_nowait` returns. Those of sdk.blocking and sdk.aio are their own."""

from collections.abc import Generator
from functools import partial
from typing import Any

import trio

from mqcommon.message.message import Message
from sdk.producer.pending import PendingSend
from sdk.producer.result import SendResult


class Ticket(PendingSend):
    """One send, until its end and after it: ``await ticket`` returns the `SendResult` or raises the error of the send.

    Any number of tasks may await it, also after its end, when that returns at once. Cancelling them does not end the
    send. ``error`` is set when it was not stored.
    """

    __slots__ = ()

    @property
    def message(self) -> Message:
        """The message: an equal one, as the producer does not keep the one that it was given."""
        return self.given()

    def done(self) -> bool:
        """Whether the message is stored, or the send has failed."""
        return self.has_ended

    def result(self) -> SendResult:
        """The result; raises the error of the send, and RuntimeError before its end."""
        return self.outcome()

    def __await__(self) -> Generator[Any, Any, SendResult]:
        if not self.has_ended:
            yield from self._ended().__await__()
        return self.outcome()

    async def _ended(self) -> None:
        wake = partial(trio.lowlevel.reschedule, trio.lowlevel.current_task())

        def abort(_: Any) -> trio.lowlevel.Abort:
            self.unwatch(wake)
            return trio.lowlevel.Abort.SUCCEEDED

        self.watch(wake)
        await trio.lowlevel.wait_task_rescheduled(abort)
