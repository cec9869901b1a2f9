"""Sends: 10 (long field names), 310 and 320 (short ones; 320 is a batch, as are 10 and 310 that say so).

The order of the checks, the codes and the texts are RocketMQ's. A message is acknowledged when it is in the log
(ASYNC_FLUSH) or on disk (SYNC_FLUSH), and slaves have it (SYNC_MASTER), unless the message says WAIT=false.
"""

import random
import struct
from collections.abc import Callable, Mapping
from typing import Any

import trio

from broker.handlers.broker_name import check_broker_name
from broker.handlers.stored_properties import Row, StoredProperties, unsupported
from broker.meta.topics import Topics
from broker.observe.stats import BrokerStats
from broker.options import BrokerOptions
from broker.replication.double_write import DoubleWrite
from broker.store.group_commit import GroupCommit
from broker.store.put_result import BatchPutResult, PutResult
from broker.store.store import MessageStore
from mqcommon.addresses import split_address
from mqcommon.clock import Clock
from mqcommon.errors import DiskFull, OutOfDescriptors, ProtocolError, RequestRefused
from mqcommon.message.batch import MAX_MESSAGES, decode_batch, encode_offsets
from mqcommon.message.flags import BORN_HOST_V6, COMPRESSED, COMPRESSION_MASK, STORE_HOST_V6, TRANSACTION_MASK
from mqcommon.message.ids import UniqueKeys, encode_host, offset_msg_id
from mqcommon.message.message import inflated
from mqcommon.message.properties import find_property
from mqcommon.names import check_topic, check_topic_is_sendable, is_retry_topic
from remoting.net.channel import Channel
from remoting.net.server import Handler, HandOver
from remoting.net.steps import Stepper, Steps
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import CBOR, Command
from remoting.protocol.headers.send import LONG, SHORT, SendFields
from remoting.protocol.scalars import read_int, read_text

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
# Messages of a batch that are stored in one turn of the loop, and properties of which are looked at in one: 10 us each.
BATCH_AT_ONCE = 3_000
_BORN_HOST = "born_host"


class SendHandlers:
    """Puts messages of clients into the store and answers, at once or when they are durable."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        commits: GroupCommit,
        stats: BrokerStats,
        options: BrokerOptions,
        clock: Clock,
        store_host: bytes,
        unique_keys: UniqueKeys,
        stepper: Stepper,
        after_turn: Callable[[], None],
        double_write: DoubleWrite | None = None,
    ) -> None:
        """``after_turn`` is called when something was stored out of a turn; ``double_write`` is a SYNC_MASTER's."""
        self._store = store
        self._topics = topics
        self._commits = commits
        self._stats = stats
        self._options = options
        self._broker_name = options.broker_name
        self._clock = clock
        self._store_host = store_host
        self._host_hex = store_host.hex().upper()
        self._v6_flag = STORE_HOST_V6 if len(store_host) > 8 else 0
        self._region, self._trace_on = options.region_id, "true" if options.trace_on else "false"
        self._properties = StoredProperties(
            self._region, options.broker_cluster_name, self._trace_on, unique_keys, clock
        )
        self._stepper = stepper
        self._after_turn = after_turn
        self._double_write = double_write
        self._waits = double_write is not None or options.flush_disk_type == "SYNC_FLUSH"

    def handlers(self) -> dict[int, Handler]:
        send = self._send if self._double_write is None else self._send_to_slaves_too
        return {
            RequestCode.SEND_MESSAGE: lambda channel, request: send(channel, request, LONG, False),
            RequestCode.SEND_MESSAGE_V2: lambda channel, request: send(channel, request, SHORT, False),
            RequestCode.SEND_BATCH_MESSAGE: lambda channel, request: send(channel, request, SHORT, True),
        }

    def _send_to_slaves_too(self, channel: Channel, request: Command, names: SendFields, batch: bool) -> Command | None:
        assert self._double_write is not None
        properties = (request.ext or {}).get(names.properties)
        if "\x02WAIT\x01false\x02" not in f"\x02{properties}\x02":
            self._double_write.admit(self._store.log.end)
        return self._send(channel, request, names, batch)

    def _send(self, channel: Channel, request: Command, names: SendFields, batch: bool) -> Command | None:
        ext = request.ext or {}
        try:
            topic: str = ext[names.topic]
            queue_id = int(ext[names.queue_id])
            sys_flag = int(ext[names.sys_flag])
            born_timestamp = int(ext[names.born_timestamp])
            flag = int(ext[names.flag])
            properties = ext.get(names.properties) or ""
            reconsume_times = int(ext.get(names.reconsume_times) or 0)
            raw_properties: bytes = properties.encode()
            check_topic_is_sendable(topic)
            config = self._topics.get(topic)
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise _bad_fields(error) from None
        broker_name = ext.get(names.broker_name)
        if broker_name != self._broker_name and broker_name is not None:
            check_broker_name(broker_name, self._broker_name)
        if config is None:
            config = self._create_topic(channel, topic, ext, names)
        if not 0 <= queue_id < config.write_queue_nums:
            queue_id = self._checked_queue_id(channel, config, queue_id)
        born_host = channel.attachments.get(_BORN_HOST) or _remember_born_host(channel)
        sys_flag = sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6) | self._v6_flag
        if len(born_host) > 8:
            sys_flag |= BORN_HOST_V6
        if sys_flag & TRANSACTION_MASK:
            raise unsupported("transactional messages")
        if len(request.body) > self._options.max_message_size:
            raise _illegal(
                f"the body has {len(request.body)} bytes, at most {self._options.max_message_size} are taken"
            )
        times = self._stats.put_times
        if times.turn is None:
            times.begin()
        try:
            if batch or ext.get(names.batch) in ("true", "1", True):
                return self._put_batch(
                    channel, request, config, queue_id, sys_flag, born_timestamp, born_host, reconsume_times,
                    raw_properties,
                )  # fmt: skip
            put = self._store.put(
                topic,
                queue_id,
                request.body,
                self._properties.of(raw_properties),
                flag=flag,
                sys_flag=sys_flag,
                born_timestamp=born_timestamp,
                born_host=born_host,
                reconsume_times=reconsume_times,
            )
        except DiskFull as error:
            times.failed += 1
            raise _no_room(error) from None
        except struct.error as error:
            raise _bad_fields(ValueError(f"a number is too large for its field: {error}")) from None
        self._stats.put(topic, 1, put.end - put.physical_offset)
        response = request.respond(
            ext={
                "queueId": queue_id,
                "TRACE_ON": self._trace_on,
                "MSG_REGION": self._region,
                "msgId": f"{self._host_hex}{put.physical_offset:016X}",
                "queueOffset": put.queue_offset,
            }
        )
        if self._waits:
            return self._when_durable(channel, request, response, put, raw_properties)
        return response

    def _put_batch(
        self,
        channel: Channel,
        request: Command,
        config: TopicConfig,
        queue_id: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        properties: bytes,
    ) -> Command | None:
        topic = config.topic_name
        batch = request.body
        try:
            if sys_flag & COMPRESSED:
                # The C++ client compresses a batch as a whole; its messages are stored as they were.
                batch = inflated(batch, self._options.max_message_size)
                sys_flag &= ~(COMPRESSED | COMPRESSION_MASK)
            rows, end = decode_batch(batch, 0, BATCH_AT_ONCE)
        except ProtocolError as error:
            raise _illegal(str(error)) from None
        if not rows or is_retry_topic(topic):
            raise _illegal("a batch needs at least one message, and its topic must be no retry topic")

        def put(rows: list[Row]) -> BatchPutResult:
            stored = self._store.put_batch(
                topic,
                queue_id,
                rows,
                suffix=self._properties.suffix,
                sys_flag=sys_flag,
                born_timestamp=born_timestamp,
                born_host=born_host,
                reconsume_times=reconsume_times,
            )
            self._stats.put(topic, len(rows), stored.end - stored.physical_offsets[0])
            return stored

        def answer(stored: BatchPutResult) -> Command | None:
            response = self._batch_answer(request, queue_id, stored)
            if self._waits:
                return self._when_durable(channel, request, response, stored, properties)
            return response

        if end < len(batch):
            raise HandOver(self._stepper.slow(lambda *_: self._put_in_steps(batch, put, answer)))
        return answer(put(self._properties.of_rows(rows)))

    def _put_in_steps(
        self,
        batch: bytes,
        put: Callable[[list[Row]], BatchPutResult],
        answer: Callable[[BatchPutResult], Command | None],
    ) -> Steps[Command | None]:
        """Store a large batch. All of it is looked at before any of it is stored; others' messages may come between."""
        parts: list[list[Row]] = []
        at = 0
        try:
            while at < len(batch):
                if len(parts) * BATCH_AT_ONCE >= MAX_MESSAGES:
                    raise ProtocolError(f"the batch has more than {MAX_MESSAGES} messages")
                rows, at = decode_batch(batch, at, BATCH_AT_ONCE)
                parts.append(self._properties.of_rows(rows))
                yield None
        except ProtocolError as error:
            raise _illegal(str(error)) from None
        try:
            stored = put(parts[0])
            for part in parts[1:]:
                self._after_turn()
                yield None
                more = put(part)
                stored = more._replace(
                    physical_offsets=stored.physical_offsets + more.physical_offsets, queue_offset=stored.queue_offset
                )
        except DiskFull as error:
            raise _no_room(error) from None
        except struct.error as error:
            raise _bad_fields(ValueError(f"a number is too large for its field: {error}")) from None
        response = answer(stored)
        self._after_turn()
        return response

    def _batch_answer(self, request: Command, queue_id: int, stored: BatchPutResult) -> Command:
        offsets = stored.physical_offsets
        ext: dict[str, Any] = {"queueId": queue_id, "TRACE_ON": self._trace_on, "MSG_REGION": self._region}
        body = b""
        if request.codec == CBOR:
            # A Skylark client makes ids of the offsets when it is asked for them.
            ext["msgId"] = offset_msg_id(self._store_host, offsets[0])
            body = encode_offsets(offsets)
        else:
            ext["msgId"] = ",".join([f"{self._host_hex}{offset:016X}" for offset in offsets])
        ext["queueOffset"] = stored.queue_offset
        return request.respond(ext=ext, body=body)

    def _when_durable(
        self,
        channel: Channel,
        request: Command,
        response: Command,
        put: PutResult | BatchPutResult,
        properties: bytes,
    ) -> Command | None:
        """The answer goes out when all up to ``put.end`` is where it must be; in time or with what was late."""
        if request.is_oneway:
            return response
        if properties.find(b"WAIT\x01false") >= 0 and find_property(properties, b"WAIT") == b"false":
            return response
        # A message is stored and may be large; it is not kept as long as its answer waits.
        request.body, request.ext = b"", None
        now = trio.current_time()
        if self._double_write is not None:

            def answer(code: int) -> None:
                response.code = code
                channel.reply(request, response)

            self._double_write.wait(put.end, now, self._stats.put_times.follow(answer))
            return None

        def done(in_time: bool) -> None:
            if not in_time:
                response.code = ResponseCode.FLUSH_DISK_TIMEOUT
            channel.reply(request, response)

        deadline = now + self._options.sync_flush_timeout / 1000
        self._commits.wait(put.end, deadline, self._stats.put_times.follow(done))
        return None

    def _checked_queue_id(self, channel: Channel, config: TopicConfig, queue_id: int) -> int:
        if queue_id < 0 < config.write_queue_nums:
            # The client leaves the choice to us.
            return random.randrange(config.write_queue_nums)
        if queue_id < 0 or (queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {config} Producer: {channel.remote}",
            )
        return queue_id

    def _create_topic(self, channel: Channel, topic: str, ext: Mapping[str, Any], names: SendFields) -> TopicConfig:
        """Make a topic that is sent to for the first time; RequestRefused when that is not wanted."""
        try:
            if type(topic) is not str:
                raise ValueError("the custom field <topic> is not text")
            check_topic(topic)
            default_topic = read_text(ext[names.default_topic])
            queue_nums = read_int(ext[names.default_topic_queue_nums])
        except (KeyError, ValueError) as error:
            raise _bad_fields(error) from None
        try:
            config = self._topics.create_on_send(topic, default_topic, queue_nums, channel.remote)
        except DiskFull as error:
            raise _no_room(error) from None
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{FAQ}")
        return config


def _remember_born_host(channel: Channel) -> bytes:
    host = channel.attachments[_BORN_HOST] = encode_host(*split_address(channel.remote))
    return host


def _illegal(reason: str) -> RequestRefused:
    return RequestRefused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the message is illegal, maybe msg body or properties length not matched. {reason}",
    )


def _no_room(error: DiskFull) -> RequestRefused:
    is_full = not isinstance(error, OutOfDescriptors)
    reason = "the broker's disk is full" if is_full else "the broker is out of file descriptors"
    return RequestRefused(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        f"service not available now. It may be caused by one of the following reasons: {reason}: {error}",
    )


def _bad_fields(error: Exception) -> RequestRefused:
    what = f"the custom field <{error.args[0]}> is null" if isinstance(error, KeyError) else str(error)
    return RequestRefused(
        ResponseCode.SYSTEM_ERROR, f"org.apache.rocketmq.remoting.exception.RemotingCommandException: {what}"
    )
