"""Receive calls: the broker hides messages for a call, and soon shows again what the call's client does not get.

A pop that was sent is never cancelled while its session is open. The broker would hold it for the rest of its wait, and
hide the messages that come meanwhile, although nobody reads its answer. So the pop of a call that ends early continues
in the background, and its messages are given back.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import islice

import trio

from skylark.mqcommon.errors import SkylarkError
from skylark.mqproxy.brokers import Brokers, Pop
from skylark.mqproxy.clients import Clients
from skylark.mqproxy.deliveries import Delivery, Receipt
from skylark.mqproxy.popping import Popping
from skylark.mqproxy.renewals import Renewals
from skylark.mqproxy.statuses import Refused
from skylark.sdk.runtime import survived

logger = logging.getLogger(__name__)

# After this time a message that its client did not get is shown again, as in RocketMQ's proxy. A shorter time would not
# help: several polls of a client that stops may take the message one after the other.
BACK_AFTER_MS = 1_000
# The most calls that have ended before their pops. A client could begin and cancel calls all the time; pops above the
# limit are cancelled, and their messages are shown again after the time that the client chose.
MAX_ABANDONED = 10_000
# When a session closes, requests that give messages back get this long.
CLOSE_TIMEOUT_S = 5.0


class Poll:
    """One receive call; call `complete` when its answer is written, and `end` when the call ends, in any way."""

    def __init__(self, polls: "Polls", client_id: str, wanted: Pop, tags: Collection[str], *, is_renewed: bool) -> None:
        self._polls = polls
        self._client_id = client_id
        self._tags = tags
        self._is_renewed = is_renewed
        self.wanted = wanted
        #: The request to the broker; None before it is sent.
        self.popping: Popping | None = None
        #: The deliveries that the client has not got yet; None while the broker has not answered.
        self.unsent: Sequence[Delivery] | None = None
        #: The answers for the deliveries that were handed out; None before, and after the call.
        self.encoded: list[bytes] | None = None
        #: Handles whose deliveries are renewed since they were handed out.
        self.noted: list[str] = []

    def begin(self, when_found: Callable[[Sequence[Delivery]], None] | None = None) -> Sequence[Delivery] | None:
        """Send the request to the broker; the deliveries, if it has answered at once.

        ``when_found`` is called with deliveries that come later, before `deliveries` returns them.
        """
        if self.popping is None:
            self.popping = self._polls.popping(self.wanted, self._tags)
            self.popping.begin(when_found)
        return self.popping.found

    async def deliveries(self) -> Sequence[Delivery]:
        """The deliveries of the broker. If this is cancelled, deliveries that come later are given back."""
        self.begin()
        assert self.popping is not None
        return await self.popping.result()

    def answer_later(self) -> None:
        """Do not call ``when_found`` of `begin` any more."""
        if self.popping is not None:
            self.popping.when_found = None

    def hand_out(self, deliveries: Sequence[Delivery], encoded: list[bytes]) -> None:
        """Set the deliveries that are going to be sent, in this order, and their answers.

        Other deliveries are shown again when their time is over.
        """
        self.unsent = deliveries
        self.encoded = encoded

    def sending(self, count: int) -> None:
        """Record that the next ``count`` deliveries are going to be sent."""
        # The deliveries are renewed from here on: the client may acknowledge them before `sent` is called.
        if self._is_renewed and self.unsent:
            for delivery in islice(self.unsent, count):
                self._polls.renew(self._client_id, self.wanted, delivery.receipt)
                self.noted.append(str(delivery.receipt))

    def sent(self, count: int) -> None:
        """Record that the client has got the next ``count`` deliveries, or will soon."""
        if self.unsent:
            self.unsent = self.unsent[count:]

    def complete(self) -> None:
        """Record that the client has got the whole answer, or will soon."""
        self.noted.clear()
        if self.unsent:
            self.unsent = ()

    def end(self) -> None:
        """Give back what the client has not got. Call it once, when the call ends."""
        self.answer_later()
        self.encoded = None
        self._polls.ended(self)


class Polls:
    """The receive calls of one session."""

    def __init__(self, brokers: Brokers, renewals: Renewals, clients: Clients) -> None:
        self._brokers = brokers
        self._renewals = renewals
        self._clients = clients
        # Polls whose calls have ended early, and whose messages are given back.
        self._abandoned: set[Poll] = set()
        self._nursery: trio.Nursery | None = None
        self._closing = trio.Event()
        self._has_ended = trio.Event()

    def begin(self, client_id: str, wanted: Pop, tags: Collection[str], *, is_renewed: bool) -> Poll:
        """A poll for messages with one of ``tags``, or for all messages without tags. It sends nothing yet."""
        return Poll(self, client_id, wanted, tags, is_renewed=is_renewed)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the pops and give messages back, until `close`; then end the pops for which no call waits."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await self._closing.wait()
                # A broker drops a pop when the connection closes.
                for poll in self._abandoned:
                    if poll.popping is not None:
                        poll.popping.cancel()
                self._nursery.cancel_scope.deadline = trio.current_time() + CLOSE_TIMEOUT_S
        finally:
            self._has_ended.set()

    async def close(self) -> None:
        """Let `run` end, and return when it has ended."""
        self._closing.set()
        await self._has_ended.wait()

    def popping(self, wanted: Pop, tags: Collection[str]) -> Popping:
        """A pop, which is not sent yet."""
        return Popping(self._start, self._brokers, wanted, tags)

    def _start(self, work: Callable[[], Awaitable[None]]) -> bool:
        if self._nursery is None or self._has_ended.is_set():
            return False
        self._nursery.start_soon(work)
        return True

    def renew(self, client_id: str, wanted: Pop, receipt: Receipt) -> None:
        """Renew a delivery from now on, as a client gets it."""
        self._clients.heard(client_id)
        self._renewals.add(client_id, wanted.group, wanted.topic, receipt)

    def ended(self, poll: Poll) -> None:
        """Record that a call has ended. Deliveries that its client has not got are given back."""
        popping = poll.popping if poll.unsent or (poll.unsent is None and _may_bring(poll.popping)) else None
        if popping is not None and (len(self._abandoned) >= MAX_ABANDONED or self._closing.is_set()):
            popping.cancel()
            popping = None
        # The client drops what it has read of an answer that broke off, so no delivery of the answer is renewed any
        # more. The deliveries that were just being sent are given back with the receipts of their last renewals.
        given_back = {str(each.receipt) for each in poll.unsent or ()} if popping is not None else ()
        for handle in poll.noted:
            if handle not in given_back:
                self._renewals.forget(handle)
        if popping is not None:
            assert self._nursery is not None
            self._abandoned.add(poll)
            self._nursery.start_soon(self._give_back, poll, popping)

    async def _give_back(self, poll: Poll, popping: Popping) -> None:
        found: Sequence[Delivery] = ()
        with survived("giving messages back"):
            try:
                found = await popping.result()
            except (Refused, SkylarkError) as error:
                logger.info("a receive call of topic %s had ended before its pop failed: %s", poll.wanted.topic, error)
            async with trio.open_nursery() as nursery:
                for delivery in found if poll.unsent is None else poll.unsent:
                    nursery.start_soon(self._show, poll.wanted, delivery)
        self._abandoned.discard(poll)

    async def _show(self, wanted: Pop, delivery: Delivery) -> None:
        try:
            async with self._renewals.taken(str(delivery.receipt)) as taken:
                taken.is_settled = True
                await self._brokers.change_invisible_time(wanted.group, wanted.topic, taken.receipt, BACK_AFTER_MS)
        except (Refused, SkylarkError) as error:
            logger.info("a message of topic %s that its client did not get is not given back: %s", wanted.topic, error)


def _may_bring(popping: Popping | None) -> bool:
    """Whether a pop has brought messages, or may still do so."""
    return popping is not None and not popping.has_failed
