"""What a slave asks of its master besides the log: 21, 201, 43, 45, where its log ends (28), and 7100.

With acting masters they also ask the other way round (43, 45, 906), and a slave that acted commits (15).
The bodies are RocketMQ's, so a Java master answers as well, all but the last. A RemotingError means no answer, a
BrokerError one with an error code, a ProtocolError one that cannot be read. Neighbour: slave_sync.py.
"""

from typing import NamedTuple, TypeVar

import trio

from mqcommon.errors import BrokerError, ProtocolError
from remoting.net.client import RemotingClient
from remoting.protocol.bodies import Body, decode_body, loads
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.group import SubscriptionGroupTable
from remoting.protocol.bodies.kvtable import KVTable
from remoting.protocol.bodies.metadata_versions import MetadataVersions
from remoting.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from remoting.protocol.bodies.topic import TopicConfigTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import CBOR, Command
from remoting.protocol.frame import MAX_FRAME_BYTES
from remoting.protocol.headers.header import Header
from remoting.protocol.headers.members import ExchangeHAInfoHeader
from remoting.protocol.headers.offsets import (
    GetAllConsumerOffsetRequestHeader,
    GetAllConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.protocol.headers.pages import FIRST_PAGE, PageRequestHeader, PageResponseHeader
from remoting.protocol.headers.watch import WatchMetadataRequestHeader

TIMEOUT_MS = 3_000
# To read more than this takes longer than a turn of the loop should.
LARGE_BYTES = 128 * 1024

B = TypeVar("B", bound=Body)


class Offsets(NamedTuple):
    """Consumer offsets. ``version`` is what to ask the next time with, None at a Java master."""

    table: ConsumerOffsetTable
    version: DataVersion | None
    #: Whether they are only those that have changed.
    is_part: bool
    next_page: PageRequestHeader | None


class Master:
    """The master at ``addr``."""

    def __init__(self, client: RemotingClient, addr: str) -> None:
        self._client = client
        self.addr = addr

    @property
    def is_connected(self) -> bool:
        """Whether the connection of the last answer is still there."""
        return self._client.connected(self.addr)

    @property
    def is_skylark(self) -> bool:
        """Whether it is one of ours, as far as its first answer told."""
        return self._client.speaks_cbor(self.addr)

    async def topics(self) -> TopicConfigTable:
        """21, in pages from one of ours: with the version of the first, so that what changed meanwhile is news."""
        whole, page = await self._page(TopicConfigTable, RequestCode.GET_ALL_TOPIC_CONFIG, FIRST_PAGE)
        while page is not None:
            more, page = await self._page(TopicConfigTable, RequestCode.GET_ALL_TOPIC_CONFIG, page)
            whole.topic_config_table |= more.topic_config_table
        return whole

    async def groups(self) -> SubscriptionGroupTable:
        """201, as `topics`."""
        whole, page = await self._page(SubscriptionGroupTable, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, FIRST_PAGE)
        while page is not None:
            more, page = await self._page(SubscriptionGroupTable, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, page)
            whole.subscription_group_table |= more.subscription_group_table
        return whole

    async def consumer_offsets(self, known: DataVersion | None, page: PageRequestHeader) -> Offsets:
        """43: a page, or all; from one of ours only what has changed since it told ``known``, if it can be."""
        header = GetAllConsumerOffsetRequestHeader()
        if known is not None:
            header = GetAllConsumerOffsetRequestHeader(known.timestamp, known.counter)
        answer = await self._answer(RequestCode.GET_ALL_CONSUMER_OFFSET, header, page=page)
        told = GetAllConsumerOffsetResponseHeader.from_answer(answer.ext)
        version = None
        if told.run is not None and told.changes is not None:
            version = DataVersion(0, told.run, told.changes)
        next_page = PageResponseHeader.from_answer(answer.ext).next
        return Offsets(await _body(ConsumerOffsetTable, answer), version, told.is_part, next_page)

    async def delay_offsets(self) -> DelayOffsetTable:
        """45."""
        return await self._ask(DelayOffsetTable, RequestCode.GET_ALL_DELAY_OFFSET)

    async def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """15: what a group committed here while the master was away."""
        header = UpdateConsumerOffsetRequestHeader(group, topic, queue_id, offset)
        await self._answer(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def tell_master(self, addr: str, ha_addr: str) -> None:
        """906 to a slave, from its master."""
        header = ExchangeHAInfoHeader(master_ha_address=ha_addr, master_flush_offset=0, master_address=addr)
        await self._answer(RequestCode.EXCHANGE_BROKER_HA_INFO, header)

    async def log_end(self) -> int | None:
        """Where its log ends; None when it does not tell."""
        info = await self._ask(KVTable, RequestCode.GET_BROKER_RUNTIME_INFO)
        end = info.table.get("commitLogMaxOffset", "")
        return int(end) if end.isdecimal() else None

    async def watch(self, known: MetadataVersions, hold_ms: int) -> MetadataVersions:
        """7100: its versions, when they are not ``known`` any more or after ``hold_ms``. Skylark only."""
        header = WatchMetadataRequestHeader(hold_ms)
        return await self._ask(MetadataVersions, RequestCode.WATCH_METADATA, header, known, hold_ms)

    async def _ask(
        self, cls: type[B], code: int, header: Header | None = None, body: Body | None = None, hold_ms: int = 0
    ) -> B:
        return await _body(cls, await self._answer(code, header, body, hold_ms))

    async def _page(self, cls: type[B], code: int, page: PageRequestHeader) -> tuple[B, PageRequestHeader | None]:
        answer = await self._answer(code, page=page)
        return await _body(cls, answer), PageResponseHeader.from_answer(answer.ext).next

    async def _answer(
        self,
        code: int,
        header: Header | None = None,
        body: Body | None = None,
        hold_ms: int = 0,
        page: PageRequestHeader | None = None,
    ) -> Command:
        request = Command(code, None if header is None else header.to_ext())
        if page is not None and self.is_skylark:
            request.ext = {**(request.ext or {}), **page.to_ext()}
        answer = await self._client.invoke(self.addr, request, TIMEOUT_MS + hold_ms, body=body)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, self.addr)
        return answer


async def _body(cls: type[B], answer: Command) -> B:
    if len(answer.body) < LARGE_BYTES:
        return _decode(cls, answer)
    return await trio.to_thread.run_sync(_decode, cls, answer)


def _decode(cls: type[B], answer: Command) -> B:
    if not answer.body:
        raise ProtocolError(f"an answer without a body, where one of {cls.__name__} belongs")
    if answer.codec == CBOR:
        return decode_body(cls, answer.body, CBOR)
    # A Java master's tables are not standard JSON, and may be long.
    return cls.from_wire(loads(answer.body, relaxed_bytes=MAX_FRAME_BYTES))
