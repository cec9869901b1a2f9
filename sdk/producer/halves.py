"""Sends the halves of transactions: messages that brokers keep until their transactions end.

A half is a request of its own, as brokers take no batches of them; those that are ready together leave together. A half
that a broker may have stored is not sent again: both copies could be committed.
"""

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.clock import Clock, SystemClock
from mqcommon.errors import SkylarkError
from mqcommon.message.flags import TRANSACTION_PREPARED
from mqcommon.message.message import Message, MessageExt
from remoting.net.client import RemotingClient
from sdk.credentials import GivenCredentials
from sdk.given_tls import GivenTls
from sdk.nameserver_source import NameServerSource
from sdk.producer.checking import Checking
from sdk.producer.producer import Producer
from sdk.producer.result import SendResult
from sdk.producer.transaction import STATE_NAMES, Checker, TransactionState
from sdk.producer.wire import DEFAULT_TOPIC
from sdk.retry import is_transient
from sdk.runtime import survived
from sdk.shared import Client, ClientHandle, sharing
from sdk.traces.sink import TraceSink

ROUTE_PAUSE_S = 1.0


class Halves:
    """Sends halves. ``immunity_s``: how long brokers do not ask about them; None for the broker's default."""

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
        credentials: GivenCredentials,
        tls: GivenTls,
        trace: bool | TraceSink,
        trace_topic: str | None,
        compression: str | None,
        compress_over_bytes: int,
        compression_level: int,
        start_timeout_ms: float | None,
    ) -> None:
        self._client = ClientHandle(nameserver, namespace=namespace, credentials=credentials, tls=tls)
        self.names = names = self._client.names
        make = partial(
            Producer, sharing(self._client.instance), group=group, send_timeout_ms=send_timeout_ms,
            max_message_bytes=max_message_bytes, clock=clock, namespace=names.namespace, trace=trace,
            trace_topic=trace_topic, compression=compression, compress_over_bytes=compress_over_bytes,
            compression_level=compression_level,
        )  # fmt: skip
        self._producer = make(retries=0, batching=False, start_timeout_ms=start_timeout_ms)
        #: Sends messages that belong to no transaction.
        self.plain = make(start_timeout_ms=None)
        self.wire_group = self._producer.wire_group
        self._topics = (DEFAULT_TOPIC, *map(names.topic, topics))
        self._checks = None if checker is None else Checking(checker, self.wire_group, names)
        immunity = "" if immunity_s is None else f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{immunity_s}\x02"
        self._producer.sys_flag = TRANSACTION_PREPARED
        self._producer.mark = f"TRAN_MSG\x01true\x02PGROUP\x01{self.wire_group}\x02{immunity}".encode()
        self._producer.checking = self._checks
        self._clock = clock or SystemClock()
        if self._checks is not None:
            self._checks.ended = self.ended

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        try:
            await self._producer.__aenter__()
            await self.plain.__aenter__()
        except BaseException:
            # It closes what is open of its producers, too: their tasks are the client's.
            await self._client.__aexit__(None, None, None)
            raise
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
        try:
            await self.plain.__aexit__(kind, error, trace)
        finally:
            try:
                await self._producer.__aexit__(kind, error, trace)
            finally:
                await self._client.__aexit__(kind, error, trace)

    async def send(self, message: Message) -> SendResult:
        """Store a half."""
        return await self._producer.send(message)

    def ended(
        self, message: Message | MessageExt, msg_id: str, addr: str, state: TransactionState, *, from_check: bool
    ) -> None:
        """The broker at ``addr`` was told the end of a transaction: for the trace."""
        if (traces := self._producer.traces) is not None:
            name = STATE_NAMES[state.value]
            traces.ended(message, msg_id, addr, name, self._clock.now_ms(), from_check=from_check)

    @property
    def traces_dropped(self) -> int:
        return self._producer.traces_dropped + self.plain.traces_dropped

    def master(self, topic: str, broker_name: str) -> str | None:
        """The address of the broker, if it is known. ``topic`` is the server's name."""
        route = self._producer.route_of(topic)
        return None if route is None else route.master(broker_name)

    @property
    def remoting(self) -> RemotingClient:
        """The connections."""
        return self._producer.remoting

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
