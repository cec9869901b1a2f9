"""Requests of a slave to its master besides the log: tables (21, 201, 43, 45, 402, 7101), its log's end (28), changes
(7100).

With acting masters, a master also asks its slaves (43, 45, 906), and a slave that acted commits offsets (15). The
bodies are RocketMQ's, so a Java master answers all but 7100 and 7101. A RemotingError means no answer, a BrokerError an
answer with an error code, a ProtocolError an answer that cannot be read. Neighbour: slave_sync.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import trio

from skylark.mqcommon.errors import BrokerError
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.body import Body, DataVersion
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.frame import MAX_FRAME_BYTES
from skylark.remoting.protocol.request import Answer, Request
from skylark.remoting.protocol.requests.auth import GET_AUTH_TABLES, AuthTables
from skylark.remoting.protocol.requests.brokers import GET_BROKER_RUNTIME_INFO
from skylark.remoting.protocol.requests.groups import (
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    MessageRequestModes,
    SubscriptionGroupTable,
)
from skylark.remoting.protocol.requests.offsets import (
    GET_ALL_CONSUMER_OFFSET,
    GET_ALL_DELAY_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    ConsumerOffsetTable,
    DelayOffsetTable,
    GetAllConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from skylark.remoting.protocol.requests.replication import (
    EXCHANGE_BROKER_HA_INFO,
    FIRST_PAGE,
    GET_ALL_MESSAGE_REQUEST_MODE,
    WATCH_METADATA,
    ExchangeHAInfoHeader,
    MetadataVersions,
    PageRequestHeader,
    PageResponseHeader,
    WatchMetadataRequestHeader,
)
from skylark.remoting.protocol.requests.topics import GET_ALL_TOPIC_CONFIG, TopicConfigTable

TIMEOUT_MS = 3_000
# Larger bodies are decoded in a thread, since that would block the event loop for too long.
LARGE_BYTES = 128 * 1024

B = TypeVar("B", bound=Body)


class Offsets(NamedTuple):
    """Consumer offsets. ``version`` is to be sent with the next question; None from a Java master."""

    table: ConsumerOffsetTable
    version: DataVersion | None
    #: Whether the table has only changed offsets.
    is_part: bool
    next_page: PageRequestHeader | None


class LevelOffsets(NamedTuple):
    """Offsets of delay levels. They are valid for a log up to ``log_end``, which has all delivered messages."""

    table: DelayOffsetTable
    log_end: int


class MasterClient:
    """The master at ``addr``."""

    def __init__(self, client: RemotingClient, addr: str) -> None:
        self._client = client
        self.addr = addr
        self._at = Remote(client, addr, TIMEOUT_MS)

    @property
    def is_connected(self) -> bool:
        """Whether the connection of the last answer is still open."""
        return self._client.connected(self.addr)

    @property
    def is_skylark(self) -> bool:
        """Whether it is a Skylark broker, by its first answer."""
        return self._client.speaks_cbor(self.addr)

    async def topics(self) -> TopicConfigTable:
        """21, in pages from a Skylark master. The version is the first page's, so that later changes are noticed."""
        return await self._whole(GET_ALL_TOPIC_CONFIG.bare, lambda body: body.topic_config_table)

    async def groups(self) -> SubscriptionGroupTable:
        """201, as `topics`."""
        return await self._whole(GET_ALL_SUBSCRIPTIONGROUP_CONFIG.bare, lambda body: body.subscription_group_table)

    async def consumer_offsets(self, known: DataVersion | None, page: PageRequestHeader) -> Offsets:
        """43: a page, or all; from a Skylark master only the changes since version ``known``, if it still has them."""
        header = GetAllConsumerOffsetRequestHeader()
        if known is not None:
            header = GetAllConsumerOffsetRequestHeader(known.timestamp, known.counter)
        answer = await call(self._at, GET_ALL_CONSUMER_OFFSET, header, page=self._of_ours(page))
        response = answer.header()
        version = None
        if response.run is not None and response.changes is not None:
            version = DataVersion(0, response.run, response.changes)
        return Offsets(await _body(answer), version, response.is_part, _next_page(answer))

    async def delay_offsets(self) -> LevelOffsets:
        """45: the master's delay offsets."""
        answer = await call(self._at, GET_ALL_DELAY_OFFSET)
        return LevelOffsets(await _body(answer), answer.header().log_end or 0)

    async def request_modes(self) -> MessageRequestModes:
        """402: which groups of the master pop and which pull."""
        return await _body(await call(self._at, GET_ALL_MESSAGE_REQUEST_MODE))

    async def auth_tables(self) -> AuthTables:
        """7101: users and policies, if this broker signs as a super user. Skylark only."""
        return await _body(await call(self._at, GET_AUTH_TABLES))

    async def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """15: an offset that a group committed here while the master was away."""
        header = UpdateConsumerOffsetRequestHeader(group, topic, queue_id, offset)
        await call(self._at, UPDATE_CONSUMER_OFFSET, header)

    async def announce_master(self, addr: str, ha_addr: str) -> None:
        """906 to a slave, from its master."""
        header = ExchangeHAInfoHeader(master_ha_address=ha_addr, master_flush_offset=0, master_address=addr)
        await call(self._at, EXCHANGE_BROKER_HA_INFO, header)

    async def ha_address(self) -> str:
        """906: where its HA port is. BrokerError when it is no master, or does not say."""
        found = (await call(self._at, EXCHANGE_BROKER_HA_INFO, ExchangeHAInfoHeader())).header().master_ha_address
        if not found:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "it does not say where its HA port is", self.addr)
        return found

    async def log_end(self) -> int | None:
        """Where its log ends; None when it does not say."""
        info = await _body(await call(self._at, GET_BROKER_RUNTIME_INFO))
        end = info.table.get("commitLogMaxOffset", "")
        return int(end) if end.isdecimal() else None

    async def watch(self, known: MetadataVersions, hold_ms: int) -> MetadataVersions:
        """7100: its versions, as soon as they differ from ``known``, or after ``hold_ms``. Skylark only."""
        return await _body(
            await call(self._at, WATCH_METADATA, WatchMetadataRequestHeader(hold_ms), known, wait_ms=hold_ms)
        )

    def _of_ours(self, page: PageRequestHeader) -> PageRequestHeader | None:
        """``page`` for a Skylark master; None for RocketMQ's, which send the whole table."""
        return page if self.is_skylark else None

    async def _whole(self, what: Request[None, None, Any, B], table: Callable[[B], dict[str, Any]]) -> B:
        """The body with the rows of all pages."""
        answer = await call(self._at, what, page=self._of_ours(FIRST_PAGE))
        whole = await _body(answer)
        while (page := _next_page(answer)) is not None:
            answer = await call(self._at, what, page=self._of_ours(page))
            table(whole).update(table(await _body(answer)))
        return whole


def _next_page(answer: Answer[Any, Any]) -> PageRequestHeader | None:
    return PageResponseHeader.from_answer(answer.command.ext).next


async def _body(answer: Answer[Any, B]) -> B:
    """The body of ``answer``. A Java master's tables are not standard JSON, and may be long."""
    if len(answer.command.body) < LARGE_BYTES:
        return answer.body(MAX_FRAME_BYTES)
    return await trio.to_thread.run_sync(answer.body, MAX_FRAME_BYTES)
