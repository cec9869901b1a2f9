"""Sends one message unchanged, as the tools' producer: no compression, no new ids."""

from collections.abc import Mapping

from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.message.properties import encode_properties
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.call import call
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE_V2, SendMessageRequestHeader
from skylark.sdk.client import ClientHandle
from skylark.sdk.producer.wire import AUTO_CREATE_TOPIC_QUEUES, DEFAULT_TOPIC
from skylark.sdk.retry import until_answered

SENDER = "TOOLS_PRODUCER"


async def send_as_tool(
    client: ClientHandle,
    queue: MessageQueue,
    body: bytes,
    properties: Mapping[str, str],
    *,
    flag: int = 0,
    sys_flag: int = 0,
) -> None:
    """Store a message in ``queue``; a master that does not answer is asked again until the client's timeout is over."""
    header = SendMessageRequestHeader(
        SENDER,
        queue.topic,
        DEFAULT_TOPIC,
        AUTO_CREATE_TOPIC_QUEUES,
        queue.queue_id,
        sys_flag,
        SystemClock().now_ms(),
        flag,
        encode_properties(properties),
        0,
        False,
    )

    async def ask() -> None:
        await client.ask_master(queue, lambda at: call(at, SEND_MESSAGE_V2, header, body))

    await until_answered(ask, client.timeout_ms, client.instance.backoff)
