"""Sends the halves of transactions: messages that brokers keep until their transactions end.

A half is a request of its own, as brokers take no batches of them; those that are ready together leave together. A half
that a broker may have stored is not sent again: both copies could be committed.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.clock import Clock
from mqcommon.errors import SkylarkError
from mqcommon.message.flags import TRANSACTION_PREPARED
from sdk.nameserver_source import NameServerSource
from sdk.producer.checking import Checking
from sdk.producer.producer import Producer
from sdk.producer.transaction import Checker
from sdk.producer.wire import DEFAULT_TOPIC
from sdk.retry import is_transient
from sdk.runtime import survived
from sdk.shared import Client

ROUTE_PAUSE_S = 1.0


class HalfProducer(Producer):
    """A `Producer` of halves. ``immunity_s``: how long brokers do not ask about them; None for the broker's default."""

    sys_flag = TRANSACTION_PREPARED

    def __init__(
        self,
        nameserver: NameServerSource | Client | None,
        *,
        group: str,
        send_timeout_ms: float,
        max_message_bytes: int,
        immunity_s: int | None,
        topics: Sequence[str],
        checker: Checker | None,
        clock: Clock | None,
        namespace: str,
    ) -> None:
        super().__init__(
            nameserver, group=group, send_timeout_ms=send_timeout_ms, retries=0, batching=False,
            max_message_bytes=max_message_bytes, clock=clock, namespace=namespace,
        )  # fmt: skip
        self._topics = (DEFAULT_TOPIC, *map(self._names.topic, topics))
        self._checks = None if checker is None else Checking(checker, self.wire_group, self._names)
        self.checking = self._checks
        immunity = "" if immunity_s is None else f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{immunity_s}\x02"
        self._mark = f"TRAN_MSG\x01true\x02PGROUP\x01{self.wire_group}\x02{immunity}".encode()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if self._checks is not None:
            self._checks.nursery = self._client.nursery
            for topic in self._topics:
                self._client.nursery.start_soon(self._make_known, topic)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._checks is not None:
            self._checks.nursery = None
        await super().__aexit__(kind, error, trace)

    @enable_ki_protection
    async def _make_known(self, topic: str) -> None:
        """Read the route of ``topic``: its brokers get heartbeats then, and can ask about what a dead member began."""
        with survived(f"reading the route of topic {topic}"):
            while True:
                try:
                    await self._client.instance.refresh(topic)
                    return
                except SkylarkError as error:
                    if not is_transient(error):
                        return
                    await trio.sleep(ROUTE_PAUSE_S)

    def new_keys(self, count: int) -> list[bytes]:
        """Unique keys, and what makes a half of a message."""
        return [self._mark + key for key in super().new_keys(count)]
