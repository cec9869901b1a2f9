"""One pop, and what it has brought. A call that waits for it and ends early does not end the pop."""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial

import trio

from skylark.mqproxy.brokers import Brokers, Pop, are_packed, keep_bodies
from skylark.mqproxy.deliveries import Delivery, InOrder, Receipt
from skylark.mqproxy.shared import SharedResult, given_up

logger = logging.getLogger(__name__)

#: Starts a task; False when the session of the pop has ended, which takes no more tasks.
StartTask = Callable[[Callable[[], Awaitable[None]]], bool]


class Popping:
    """A pop. Its result may be there when `begin` returns: a broker in this process answers at once.

    A message whose tag is not one of ``tags`` is acknowledged here, if there are tags: the broker compares only hashes
    of tags, and would show the message again and again. So are damaged messages that an ordered group gives up.
    """

    __slots__ = (
        "_brokers",
        "_result",
        "_scope",
        "_start_task",
        "_tags",
        "_wanted",
        "_withdraw",
        "when_found",
    )

    def __init__(self, start_task: StartTask, brokers: Brokers, wanted: Pop, tags: Collection[str]) -> None:
        """The pop ``wanted``; `begin` sends it."""
        self._start_task = start_task
        #: As `begin` takes it; None: nothing is called.
        self.when_found: Callable[[Sequence[Delivery]], None] | None = None
        self._brokers = brokers
        self._wanted = wanted
        self._tags = tags
        self._result: SharedResult[Sequence[Delivery]] = SharedResult()
        # The task that carries the pop out, if there is one.
        self._scope: trio.CancelScope | None = None
        # Ends the request to the broker, if it was sent without a task.
        self._withdraw: Callable[[], None] | None = None

    def begin(self, when_found: Callable[[Sequence[Delivery]], None] | None = None) -> None:
        """Send the request to the broker.

        ``when_found`` is called with deliveries that come after this method has returned, before waiting tasks run.
        """
        withdraw = self._brokers.pop_at_once(self._wanted, self._answered, self._pop_in_task)
        if withdraw is None:
            self._pop_in_task()
        if not self._result.has_ended:
            self._withdraw, self.when_found = withdraw, when_found

    @property
    def found(self) -> Sequence[Delivery] | None:
        """The deliveries; None while the pop goes on, and when it has failed."""
        return self._result.value

    @property
    def has_failed(self) -> bool:
        """Whether the pop has ended without a result."""
        return self._result.error is not None

    def cancel(self) -> None:
        """End the pop; whoever waits for its result gets a SkylarkError."""
        if not self._result.has_ended:
            withdraw = self._withdraw
            self._end(given_up())
            if withdraw is not None:
                withdraw()
            if self._scope is not None:
                self._scope.cancel()

    async def result(self) -> Sequence[Delivery]:
        """The deliveries, once the pop has ended; raises the error of the pop."""
        return await self._result.wait()

    def _end(self, result: Sequence[Delivery] | Exception) -> None:
        if self._result.has_ended:
            # It was cancelled before: the messages are shown again after the time that the client chose.
            return
        when_found, self.when_found, self._withdraw = self.when_found, None, None
        if isinstance(result, Exception):
            self._result.fail("a pop", result)
            return
        self._result.put(result)
        if when_found is not None:
            try:
                when_found(result)
            except Exception:
                # Nobody else learns of this error; the task that waits answers the call.
                logger.exception("a receive could not be answered in the turn in which its messages came")

    def _answered(self, result: Sequence[Delivery] | Exception) -> None:
        if isinstance(result, Exception):
            self._end(result)
        elif are_packed(result):
            self._start(partial(self._unpacked, result))
        elif self._others(result):
            self._start(partial(self._without_others, result))
        else:
            self._end(result)

    def _pop_in_task(self) -> None:
        self._start(self._pop)

    def _start(self, work: Callable[[], Awaitable[Sequence[Delivery]]]) -> None:
        if not (self._result.has_ended or self._start_task(partial(self._run, work))):
            self.cancel()

    async def _run(self, work: Callable[[], Awaitable[Sequence[Delivery]]]) -> None:
        with trio.CancelScope() as self._scope:
            if self._result.has_ended:
                return
            try:
                self._end(await work())
            except Exception as error:
                self._end(error)
            finally:
                # The session has ended.
                self._end(given_up())

    async def _pop(self) -> Sequence[Delivery]:
        return await self._without_others(await self._brokers.pop(self._wanted))

    async def _unpacked(self, found: Sequence[Delivery]) -> Sequence[Delivery]:
        await keep_bodies(found)
        return await self._without_others(found)

    async def _without_others(self, found: Sequence[Delivery]) -> Sequence[Delivery]:
        others = self._others(found)
        if not others:
            return found
        await self._brokers.ack(self._wanted.group, self._wanted.topic, others)
        return [delivery for delivery in found if not self._tags or delivery.message.tags in self._tags]

    def _others(self, found: Sequence[Delivery]) -> Sequence[Receipt]:
        """The messages to acknowledge here."""
        tags = self._tags
        others = [each.receipt for each in found if each.message.tags not in tags] if tags else []
        return [*found.given_up, *others] if isinstance(found, InOrder) else others
