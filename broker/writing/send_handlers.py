"""Sends: 10 (long field names), 310 and 320 (short ones; 320 is a batch, as are 10 and 310 that say so).

A request's fields become a message for the Writer, and the Writer's result becomes an answer. The order of the checks,
the codes and the texts are RocketMQ's. A producer is answered when its message is safe, see writing/durability.py.
Neighbours: writing/admission.py (whether a request may send now), writing/writer.py (stores the messages).
"""

import logging
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import trio

from skylark.broker.broker_names import check_broker_name
from skylark.broker.meta.topics import Topics, no_such_topic
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.store.queue.batch_columns import Columns, UniformBatch
from skylark.broker.store.queue.batch_records import RowBatch
from skylark.broker.store.queue.entry import shared_tag, uniform_rows
from skylark.broker.store.store import BatchPutResult
from skylark.broker.writing.refusals import bad_fields, illegal, no_space
from skylark.broker.writing.stored_properties import Row, asks_nothing, with_priority
from skylark.broker.writing.waits import skips_waiting
from skylark.broker.writing.writer import BatchFields, Writer
from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.errors import DiskFull, ProtocolError, RequestRefused
from skylark.mqcommon.message.batch import MAX_MESSAGES, decode_batch, encode_batch, encode_offsets
from skylark.mqcommon.message.compression import decompressed
from skylark.mqcommon.message.flags import COMPRESSED, COMPRESSION_MASK, TRANSACTION_PREPARED
from skylark.mqcommon.message.ids import encode_host, offset_msg_id
from skylark.mqcommon.message.properties import PRIORITY, find_property, replace_properties
from skylark.mqcommon.names import check_topic, check_topic_is_sendable, is_retry_topic
from skylark.mqcommon.polling import poll_until
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, RunInTask
from skylark.remoting.net.steps import Stepper, Steps
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.requests.sends import (
    DEFERRED_BATCHES,
    LONG,
    ONLY_IF_SAFE,
    SEND_BATCH_MESSAGE,
    SEND_MESSAGE,
    SEND_MESSAGE_V2,
    SHORT,
    SendFields,
)
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.remoting.protocol.scalars import read_int, read_text

logger = logging.getLogger(__name__)

# Messages of a batch that are checked or stored in one turn of the event loop: 10 µs each.
BATCH_AT_ONCE = 3_000
# A compressed batch of more bytes is decompressed in a thread.
UNPACKED_AT_ONCE = 8 * 1024
STOP_TIMEOUT_S = 2.0
_BORN_HOST = "born_host"
_PRIORITY = PRIORITY.encode()
#: The dead letter topic for a message that is sent to a retry topic; None when the message may go to the retry topic.
#: Called with the retry topic, the number of deliveries so far, and the limit of deliveries if the send has one.
DeadLetterTopic = Callable[[str, int, int | None], TopicConfig | None]
_NO_BATCH = "a batch needs at least one message, and its topic must not be a retry topic"


class _Batch(NamedTuple):
    """A batch send while it is stored. ``is_kept``: stored as one record, in a batch queue."""

    channel: Channel
    request: Command
    fields: BatchFields
    properties: bytes
    is_kept: bool


class SendHandlers(Part):
    """Stores messages of clients and answers, at once or when they are safe."""

    tick_interval_ms = 100

    def __init__(
        self,
        writer: Writer,
        topics: Topics,
        options: BrokerOptions,
        store_host: bytes,
        stepper: Stepper,
        turned: Callable[[], None],
        dead_letter_topic: DeadLetterTopic,
    ) -> None:
        """``turned`` is called after messages were stored outside of a turn."""
        self._writer = writer
        self._durability = writer.durability
        self._admission = writer.admission
        self._topics = topics
        self._put_times = writer.times
        self._options = options
        self._broker_name = options.broker_name
        self._store_host = store_host
        self._host_hex = store_host.hex().upper()
        self._region, self._trace_on = options.region_id, "true" if options.trace_on else "false"
        self._stepper = stepper
        self._turned = turned
        self._dead_letter_topic = dead_letter_topic
        self._first_batch = trio.Event()
        self._columns: Columns | None = None

    def handlers(self) -> dict[int, Handler]:
        return {
            SEND_MESSAGE.code: partial(self.send, LONG, False),
            SEND_MESSAGE_V2.code: partial(self.send, SHORT, False),
            SEND_BATCH_MESSAGE.code: partial(self.send, SHORT, True),
        }

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load numpy after the first batch, which is stored row by row; later batches are stored by columns."""
        task_status.started()
        await self._first_batch.wait()
        try:
            self._columns = await trio.to_thread.run_sync(Columns)
            self._writer.use_columns(self._columns.np)
        except ModuleNotFoundError:
            pass  # without the extra `fast` all batches are stored row by row
        except Exception as error:
            # The broker works without numpy, whatever is wrong with the installed one.
            logger.warning("numpy cannot be loaded, so batches are stored row by row, which is slower: %s", error)

    async def stop(self) -> None:
        """Return when all sends are answered, or after a timeout."""
        await poll_until(lambda: not self._durability, STOP_TIMEOUT_S)

    def after_turn(self) -> None:
        """Record the times of this turn's sends."""
        self._put_times.end_turn()

    def tick(self) -> None:
        """Answer sends that have waited for too long."""
        self._durability.expire(trio.current_time())

    def send(self, names: SendFields, batch: bool, channel: Channel, request: Command) -> Command | None:
        """10, 310 and 320: store the message, and answer at once or when it is safe."""
        ext = request.ext or {}
        if not self._admission.takes_sends:
            self._admission.check_send(ext.get(names.topic))
        if self._durability.needs_slaves and ext.get(ONLY_IF_SAFE):
            self._writer.admit_safe()
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
            raise bad_fields(error) from None
        broker_name = ext.get(names.broker_name)
        if broker_name != self._broker_name and broker_name is not None:
            check_broker_name(broker_name, self._broker_name)
        if config is None:
            # A send that is refused must not leave a topic behind.
            self._writer.admit(raw_properties)
            config = self._create_topic(channel, topic, ext, names)
        if topic[0] == "%" and is_retry_topic(topic):
            # A consumer's own copy of a message that it could not give back: the message may be a dead letter by now.
            dead = self._dead_letter_topic(topic, reconsume_times, _max_times(ext, names))
            if dead is not None:
                config, topic, queue_id = dead, dead.topic_name, 0
                raw_properties = replace_properties(raw_properties, {b"DELAY": None})
        elif raw_properties.find(_PRIORITY) >= 0 and self._topics.static.get(topic) is None:
            # The queues of a static topic are parts of logical queues, among which the client has chosen.
            raw_properties, queue_id = with_priority(raw_properties, queue_id, config.write_queue_nums)
        if not 0 <= queue_id < config.write_queue_nums:
            queue_id = self._checked_queue_id(channel, config, queue_id)
        born_host = channel.attachments.get(_BORN_HOST) or _remember_born_host(channel)
        if batch or ext.get(names.batch) in ("true", "1", True):
            fields = BatchFields(topic, queue_id, sys_flag, born_timestamp, born_host, reconsume_times)
            return self._put_batch(channel, request, fields, raw_properties)
        # From here on the message is in the log, whatever answer the producer gets.
        put = self._writer.put(
            topic, queue_id, request.body, raw_properties, flag, sys_flag, born_timestamp, born_host, reconsume_times
        )
        answer = {
            "queueId": queue_id,
            "TRACE_ON": self._trace_on,
            "MSG_REGION": self._region,
            "msgId": f"{self._host_hex}{put.physical_offset:016X}",
            "queueOffset": put.queue_offset,
        }
        if sys_flag & TRANSACTION_PREPARED:
            answer["transactionId"] = (find_property(raw_properties, b"UNIQ_KEY") or b"").decode()
        if put.recall_handle:
            answer["recallHandle"] = put.recall_handle
        response = request.respond(ext=answer)
        if not self._durability.waits or request.is_oneway or skips_waiting(raw_properties):
            return response
        return self._durability.answer_when_safe(
            channel, request, response, put.end, trio.current_time(), self._put_times.follow()
        )

    def _put_batch(self, channel: Channel, request: Command, fields: BatchFields, properties: bytes) -> Command | None:
        data, sys_flag = request.body, fields.sys_flag
        self._writer.check(sys_flag, len(data))
        if is_retry_topic(fields.topic):
            raise illegal(_NO_BATCH)
        if sys_flag & COMPRESSED:
            fields = fields._replace(sys_flag=sys_flag & ~(COMPRESSED | COMPRESSION_MASK))
        if self._columns is None:
            self._first_batch.set()
        is_kept = self._writer.keeps_batches(fields.topic, fields.queue_id)
        batch = _Batch(channel, request, fields, properties, is_kept)
        try:
            if sys_flag & COMPRESSED:
                # The C++ client compresses a batch as a whole; its messages are stored uncompressed.
                unpack = partial(decompressed, data, sys_flag, self._options.max_message_size)
                if len(data) > UNPACKED_AT_ONCE:
                    raise RunInTask(self._stepper.slow(lambda *_: self._unpack_in_steps(batch, unpack)))
                data = unpack()
            if is_kept and 0 < (count := uniform_rows(data, 0, len(data))) <= MAX_MESSAGES:
                return self._answer_batch(batch, self._writer.put_inner(fields, data, count, properties))
            if not is_kept and (uniform := self._uniform(data)) is not None:
                return self._answer_batch(batch, self._writer.put_batch(fields, uniform, properties))
            rows, end = decode_batch(data, 0, BATCH_AT_ONCE)
        except ProtocolError as error:
            raise illegal(str(error)) from None
        if not rows:
            raise illegal(_NO_BATCH)
        if end < len(data):
            raise RunInTask(self._stepper.slow(lambda *_: self._put_in_steps(batch, data)))
        if (request.ext or {}).get(DEFERRED_BATCHES) and not is_kept:
            return self._place_rows(batch, rows)
        return self._answer_batch(batch, self._put_rows(batch, self._writer.stamped(rows)))

    def _place_rows(self, batch: "_Batch", rows: list[Row]) -> Command | None:
        """Store a batch in which some messages are to be delivered later, see `DEFERRED_BATCHES`."""
        placed = self._writer.place_rows(batch.fields, rows, batch.properties)
        ext = {
            "queueId": batch.fields.queue_id,
            "TRACE_ON": self._trace_on,
            "MSG_REGION": self._region,
            "msgId": offset_msg_id(self._store_host, placed.physical_offsets[0]),
            "queueOffset": placed.queue_offsets[0],
            DEFERRED_BATCHES: True,
        }
        body = encode_offsets([*placed.physical_offsets, *placed.queue_offsets, *placed.slots_ms])
        return self._when_safe(batch, batch.request.respond(ext=ext, body=body), placed.end)

    def _uniform(self, data: bytes) -> UniformBatch | None:
        """The batch if it can be stored by columns; None if it must be stored row by row."""
        if self._columns is None:
            return None
        uniform = self._columns.of(data)
        if uniform is not None and (uniform.has_only_keys or asks_nothing(uniform.properties)):
            return uniform
        return None

    def _unpack_in_steps(self, batch: "_Batch", unpack: Callable[[], bytes]) -> Steps[Command | None]:
        """Decompress a batch in a thread, and store it."""
        try:
            data: bytes = yield unpack
        except ProtocolError as error:
            raise illegal(str(error)) from None
        if not data:
            raise illegal(_NO_BATCH)
        return (yield from self._put_in_steps(batch, data))

    def _put_in_steps(self, batch: "_Batch", data: bytes) -> Steps[Command | None]:
        """Store a large batch in parts. All messages are checked before the first part is stored.

        Other messages may be stored between the parts.
        """
        parts: list[list[Row]] = []
        at = 0
        try:
            while at < len(data):
                if len(parts) * BATCH_AT_ONCE >= MAX_MESSAGES:
                    raise ProtocolError(f"the batch has more than {MAX_MESSAGES} messages")
                rows, at = decode_batch(data, at, BATCH_AT_ONCE)
                parts.append(self._writer.stamped(rows))
                yield None
        except ProtocolError as error:
            raise illegal(str(error)) from None
        # All rows are checked now. Each part is stored in a turn of its own. If a put fails, the parts before it stay:
        # the producer gets an error, and may send the whole batch again.
        stored = self._put_rows(batch, parts[0])
        for part in parts[1:]:
            self._turned()
            yield None
            more = self._put_rows(batch, part)
            stored = more._replace(
                physical_offsets=[*stored.physical_offsets, *more.physical_offsets], queue_offset=stored.queue_offset
            )
        response = self._answer_batch(batch, stored)
        self._turned()
        return response

    def _put_rows(self, batch: "_Batch", rows: list[Row]) -> BatchPutResult:
        fields = batch.fields
        # Checked again, as the topic may have been made anew between the parts of a large batch.
        if self._writer.keeps_batches(fields.topic, fields.queue_id):
            return self._writer.put_inner(fields, encode_batch(rows), len(rows), batch.properties, shared_tag(rows))
        return self._writer.put_batch(fields, RowBatch(rows), batch.properties)

    def _answer_batch(self, batch: "_Batch", stored: BatchPutResult) -> Command | None:
        """The answer, if the batch is safe already."""
        request, offsets = batch.request, stored.physical_offsets
        ext: dict[str, Any] = {"queueId": batch.fields.queue_id, "TRACE_ON": self._trace_on, "MSG_REGION": self._region}
        body = b""
        if request.codec == CBOR:
            # A Skylark client makes the ids from the offsets when it needs them.
            ext["msgId"] = offset_msg_id(self._store_host, offsets[0])
            body = encode_offsets(offsets)
        elif batch.is_kept and (unique_key := find_property(batch.properties, b"UNIQ_KEY")):
            # A Java client expects the unique key of the batch in the answer.
            ext["batchUniqId"] = unique_key.decode()
            ext["msgId"] = f"{self._host_hex}{offsets[0]:016X}"
        else:
            ext["msgId"] = ",".join([f"{self._host_hex}{offset:016X}" for offset in offsets])
        ext["queueOffset"] = stored.queue_offset
        return self._when_safe(batch, request.respond(ext=ext, body=body), stored.end)

    def _when_safe(self, batch: "_Batch", response: Command, end: int) -> Command | None:
        """``response``, if the batch is safe already; else None, and the answer is sent when the batch is safe."""
        request = batch.request
        if not self._durability.waits or request.is_oneway or skips_waiting(batch.properties):
            return response
        return self._durability.answer_when_safe(
            batch.channel, request, response, end, trio.current_time(), self._put_times.follow()
        )

    def _checked_queue_id(self, channel: Channel, config: TopicConfig, queue_id: int) -> int:
        if queue_id < 0 < config.write_queue_nums:
            # The client leaves the choice of the queue to the broker.
            return random.randrange(config.write_queue_nums)
        if queue_id < 0 or (queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {config} Producer: {channel.remote}",
            )
        return queue_id

    def _create_topic(self, channel: Channel, topic: str, ext: Mapping[str, Any], names: SendFields) -> TopicConfig:
        """Create a topic at the first send to it; RequestRefused when that is not allowed."""
        try:
            if type(topic) is not str:
                raise ValueError("the custom field <topic> is not text")
            check_topic(topic)
            default_topic = read_text(ext[names.default_topic])
            queue_nums = read_int(ext[names.default_topic_queue_nums])
        except (KeyError, ValueError) as error:
            raise bad_fields(error) from None
        try:
            config = self._topics.create_on_send(topic, default_topic, queue_nums, channel.remote)
        except DiskFull as error:
            raise no_space(error) from None
        if config is None:
            raise no_such_topic(topic)
        return config


def _max_times(ext: Mapping[str, Any], names: SendFields) -> int | None:
    value = ext.get(names.max_reconsume_times)
    try:
        return None if value is None else read_int(value)
    except ValueError as error:
        raise bad_fields(error) from None


def _remember_born_host(channel: Channel) -> bytes:
    host = channel.attachments[_BORN_HOST] = encode_host(*split_address(channel.remote))
    return host
