"""Auto renew: messages that a client is consuming stay hidden for as long as it lives and needs.

A client that asks for auto renew does not know how long its handler takes. It has the receipt handle of the delivery;
each renewal gives the message another handle, which only the proxy knows.
"""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import SkylarkError
from skylark.mqproxy.brokers import Brokers
from skylark.mqproxy.deliveries import Receipt
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.statuses import Refused
from skylark.sdk.runtime import survived

logger = logging.getLogger(__name__)

# The most renewed messages, at some 500 bytes each. Further messages come again after their first invisible time.
MAX_RENEWED = 200_000
AT_ONCE = 64


class _Renewed:
    """One delivery. ``lock`` is held while its handle changes, so that an acknowledgement uses the last handle.

    ``requests``: how many requests of its client are in progress; meanwhile it is not renewed. ``shown_ms``: when the
    message is shown again. ``shown_ms`` and ``ends_ms`` are times of the steady clock, since the wall clocks of broker
    and proxy may differ, and be set.
    """

    __slots__ = ("client_id", "ends_ms", "group", "last_ms", "lock", "receipt", "requests", "shown_ms", "topic")

    def __init__(self, client_id: str, group: str, topic: str, receipt: Receipt, shown_ms: int, ends_ms: int) -> None:
        self.client_id = client_id
        self.group = group
        self.topic = topic
        self.receipt = receipt
        self.shown_ms = shown_ms
        self.last_ms = ends_ms
        self.ends_ms = ends_ms
        self.requests = 0
        self.lock = trio.Lock()


class Taken:
    """The receipt for one request of a client. ``is_settled``: the client does not need this delivery any more."""

    __slots__ = ("is_settled", "receipt")

    def __init__(self, receipt: Receipt) -> None:
        self.receipt = receipt
        self.is_settled = False


class RenewalCounts:
    """Renewals of all users so far, and how many of them failed."""

    def __init__(self) -> None:
        self.renewed = 0
        self.failed = 0


class Renewals:
    """The deliveries of living clients that are renewed."""

    def __init__(
        self,
        brokers: Brokers,
        options: ProxyOptions,
        clock: Clock,
        is_alive: Callable[[str], bool],
        counts: RenewalCounts,
    ) -> None:
        self._brokers = brokers
        self._options = options
        self._clock = clock
        self._is_alive = is_alive
        # By the handle that the client knows.
        self._renewed: dict[str, _Renewed] = {}
        self._counts = counts

    def __len__(self) -> int:
        """How many deliveries are renewed."""
        return len(self._renewed)

    def add(self, client_id: str, group: str, topic: str, receipt: Receipt) -> None:
        """Renew this delivery until it is settled, the client's end, or ``renewMaxTimeMillis``."""
        if len(self._renewed) < MAX_RENEWED:
            ends_ms = self._clock.monotonic_ms() + self._options.renew_max_time_millis
            self._renewed[str(receipt)] = _Renewed(client_id, group, topic, receipt, self._shown_ms(receipt), ends_ms)

    def forget(self, handle: str) -> None:
        """Do not renew this delivery any more."""
        self._renewed.pop(handle, None)

    def unrenewed(self, handle: str) -> Taken | None:
        """As `taken`, for a delivery that is not renewed, which needs no block; None for others."""
        return None if handle in self._renewed else Taken(Receipt.parse(handle, self._clock.now_ms()))

    def receipts(self, handles: Sequence[str]) -> Sequence[Receipt] | None:
        """The receipts for these handles; None when a delivery is renewed, or a handle cannot be used: use `taken`."""
        if self._renewed and not self._renewed.keys().isdisjoint(handles):
            return None
        try:
            return Receipt.parse_all(handles, self._clock.now_ms())
        except Refused:
            return None

    @asynccontextmanager
    async def taken(self, handle: str) -> AsyncIterator[Taken]:
        """The receipt for the handle that a client knows. Refused as `Receipt.parse`.

        The delivery is not renewed during the block, nor after a block that has settled it.
        """
        if (unrenewed := self.unrenewed(handle)) is not None:
            yield unrenewed
            return
        renewed = self._renewed[handle]
        renewed.requests += 1
        taken = Taken(renewed.receipt)
        try:
            if renewed.lock.locked():
                # A renewal is on its way.
                async with renewed.lock:
                    taken.receipt = renewed.receipt
            yield taken
        finally:
            renewed.requests -= 1
            if taken.is_settled:
                self.forget(handle)
            else:
                # The client may ask again, with the only handle that it knows. A client that has given up must not keep
                # the message hidden, so from here on the delivery is renewed for a short time only.
                now_ms = self._clock.monotonic_ms()
                renewed.ends_ms = min(renewed.last_ms, now_ms + self._options.default_invisible_time_mills)

    async def run(self) -> None:
        """Renew due deliveries, again and again."""
        while True:
            await trio.sleep(self._options.renew_schedule_period_millis / 1000)
            with survived("renewing messages"):
                await self.renew_due()

    async def renew_due(self) -> None:
        """Renew only deliveries that are shown soon: each renewal is a request, and most handlers end sooner."""
        now_ms = self._clock.monotonic_ms()
        due: list[tuple[str, _Renewed]] = []
        for handle, renewed in list(self._renewed.items()):
            if renewed.ends_ms <= now_ms or not self._is_alive(renewed.client_id):
                self._renewed.pop(handle, None)
            elif renewed.shown_ms - now_ms <= self._options.renew_ahead_time_millis:
                due.append((handle, renewed))
        for start in range(0, len(due), AT_ONCE):
            async with trio.open_nursery() as nursery:
                for one in due[start : start + AT_ONCE]:
                    nursery.start_soon(self._renew, *one)

    async def _renew(self, handle: str, renewed: _Renewed) -> None:
        async with renewed.lock:
            # The delivery was acknowledged while this renewal waited, or is being acknowledged now.
            if handle not in self._renewed or renewed.requests:
                return
            try:
                renewed.receipt = await self._brokers.change_invisible_time(
                    renewed.group, renewed.topic, renewed.receipt, self._options.default_invisible_time_mills
                )
                renewed.shown_ms = self._shown_ms(renewed.receipt)
                self._counts.renewed += 1
            except SkylarkError as error:
                self._counts.failed += 1
                # The renewal is tried again in the next round; when the invisible time is over, the message comes
                # again.
                if renewed.shown_ms <= self._clock.monotonic_ms():
                    self._renewed.pop(handle, None)
                logger.info("a message of topic %s is not renewed: %s", renewed.topic, error)

    def _shown_ms(self, receipt: Receipt) -> int:
        """When a message is shown again that was hidden just now."""
        return self._clock.monotonic_ms() + receipt.pop.invisible_time
