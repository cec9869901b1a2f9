"""Finding messages: by key (12), by their offset in the commit log (33), and the entries of a queue (321)."""

import logging

from skylark.broker.cold_reads import reading
from skylark.broker.meta.clients import Clients
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.store.expanded import expanded
from skylark.broker.store.filter import ALL
from skylark.broker.store.queue.consumequeue import ConsumeQueue
from skylark.broker.store.queue.entry import BLANK_SIZE
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.inner import may_hold_batches
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.net.steps import StepHandler, Steps
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.clients import SubscriptionData
from skylark.remoting.protocol.requests.query import (
    QUERY_CONSUME_QUEUE,
    QUERY_MESSAGE,
    VIEW_MESSAGE_BY_ID,
    ConsumeQueueData,
    ConsumeQueueEntries,
    QueryMessageResponseHeader,
)

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 8 * 1024 * 1024
# An answer with more queue entries would hold up other requests.
MAX_ENTRIES = 2_000
# RocketMQ 5.x's types of keys; without a type, or with another one, a key is a word of KEYS or a unique key.
UNIQUE_INDEX = "U"
TAG_INDEX = "T"


class QueryHandlers(Part):
    """Handles queries for messages; answers contain the stored bytes."""

    reads_disk = (VIEW_MESSAGE_BY_ID.code, QUERY_CONSUME_QUEUE.code)

    def __init__(self, store: MessageStore, clients: Clients, options: BrokerOptions) -> None:
        self._store = store
        self._clients = clients
        self._options = options

    def handlers(self) -> dict[int, Handler]:
        return {
            VIEW_MESSAGE_BY_ID.code: self.view,
            QUERY_CONSUME_QUEUE.code: self.entries,
        }

    def step_handlers(self) -> dict[int, StepHandler]:
        return {QUERY_MESSAGE.code: self.query}

    def query(self, channel: Channel, request: Command) -> Steps[Command]:
        """12: the messages of a topic with a key, within some time."""
        header = QUERY_MESSAGE.header(request)
        if header.index_type == TAG_INDEX:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, "this broker's index has keys, not tags")
        max_num = self._options.default_query_max_num if header.unique_key_query else header.max_num
        search = self._store.start_query(
            header.topic,
            header.key,
            max_num,
            header.begin_timestamp,
            header.end_timestamp,
            MAX_ANSWER_BYTES,
            unique=bool(header.unique_key_query) or header.index_type == UNIQUE_INDEX,
        )
        while (yield from reading(search.step)):
            yield None
        result = search.result
        if result.cut:
            logger.warning("query of key %s of %s: %s", header.key[:100], header.topic, result.cut)
        fields = QueryMessageResponseHeader(
            result.last_update_timestamp, result.last_update_physical_offset, result.next_end_ms
        )
        # Whether there is a message is not known when the search has ended early.
        if not result.records and not result.cut:
            text = "can not find message, maybe time range not correct"
            return QUERY_MESSAGE.answer(request, fields, code=ResponseCode.QUERY_NOT_FOUND, remark=text)
        return QUERY_MESSAGE.answer(request, fields, remark=result.cut or None, body=b"".join(result.records))

    def view(self, channel: Channel, request: Command) -> Command:
        """33: the message at an offset of the commit log."""
        header = VIEW_MESSAGE_BY_ID.header(request)
        offset = header.offset
        record = self._store.visible_record_at(offset)
        if record is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        if not header.takes_batches and may_hold_batches(record, [0]):
            # RocketMQ's clients read one message from the answer, so an inner batch is answered with its first message.
            _, record = next(expanded(record, 0, ALL))
        return request.respond(body=record)

    def entries(self, channel: Channel, request: Command) -> Command:
        """321: entries of a consume queue, with their tag codes, and whether a group's filter lets them pass."""
        header = QUERY_CONSUME_QUEUE.header(request)
        topic, queue_id, index = header.topic, header.queue_id, header.index
        queue = self._store.queues.find(topic, queue_id)
        if queue is None or not queue.next_offset:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        body = ConsumeQueueEntries(max_queue_index=queue.next_offset, min_queue_index=queue.min_offset)
        if header.consumer_group:
            group = header.consumer_group
            body.subscription_data = self._clients.subscription(group, topic)
            if body.subscription_data is None:
                body.filter_data = f"{group}@{topic} is not online!"
                body.subscription_data = self._clients.last_subscription(group, topic)
        answer = answer_with(QUERY_CONSUME_QUEUE, request, body)
        if not queue.min_offset <= index < queue.next_offset:
            answer.remark = f"Index {index} of {queue_id}@{topic} is not exist!"
            return answer
        body.queue_data = _entries(queue, index, min(header.count, MAX_ENTRIES), body.subscription_data)
        return answer_with(QUERY_CONSUME_QUEUE, request, body)


def _entries(
    queue: ConsumeQueue, index: int, count: int, subscription: SubscriptionData | None
) -> list[ConsumeQueueData]:
    rows: list[ConsumeQueueData] = []
    end = min(index + count, queue.next_offset)
    # One call of `entries` does not read past the end of a file.
    while (at := index + len(rows)) < end:
        for physical, size, tags_code in queue.entries(at, end - at):
            row = ConsumeQueueData(physical, size, tags_code)
            if size == BLANK_SIZE:
                row.msg = "blank: no message has this offset"
            elif subscription is not None and subscription.is_tag:
                row.eval = not subscription.tags_set or tags_code in subscription.code_set
            rows.append(row)
    return rows
