"""Requests of simple consumers to a broker, one function per request; as in broker_api.py."""

from collections.abc import Mapping

from remoting.net.call import call
from remoting.protocol.requests import pops
from remoting.protocol.requests.clients import TAG
from remoting.protocol.requests.pops import (
    ANY_QUEUE,
    BatchAckMessageRequestBody,
    ChangeInvisibleTimeRequestHeader,
    NotificationRequestHeader,
    PopMessageRequestHeader,
)
from sdk.consumer.popped import Lease, ReceivedMessage, received
from sdk.endpoint import Endpoint


async def pop(
    at: Endpoint,
    group: str,
    topic: str,
    *,
    most: int,
    invisible_ms: int,
    wait_ms: int,
    now_ms: int,
    init_mode: int,
    expression: str,
    namespace: str,
) -> list[ReceivedMessage]:
    """Messages of any queue that the broker has of ``topic``; none when there is none within ``wait_ms``."""
    header = PopMessageRequestHeader(
        group, topic, ANY_QUEUE, most, invisible_ms, wait_ms, now_ms, init_mode, TAG, expression
    )
    answer = await call(at, pops.POP_MESSAGE, header, wait_ms=wait_ms)
    data = answer.body()
    return received(data, answer.header(), topic, group, at.broker_name, namespace) if data else []


async def has_message(at: Endpoint, group: str, topic: str, *, wait_ms: int, now_ms: int) -> bool:
    """Whether there is a message to pop; the broker waits ``wait_ms`` for one."""
    header = NotificationRequestHeader(group, topic, ANY_QUEUE, wait_ms, now_ms)
    return (await call(at, pops.NOTIFICATION, header, wait_ms=wait_ms)).header().has_msg


async def acknowledge(at: Endpoint, bits: Mapping[Lease, int]) -> None:
    """Acknowledge messages of this broker."""
    body = BatchAckMessageRequestBody([lease.acks(one) for lease, one in bits.items()], at.broker_name)
    await call(at, pops.BATCH_ACK_MESSAGE, None, body)


async def change_invisible_time(at: Endpoint, lease: Lease, offset: int, invisible_ms: int) -> Lease:
    """Show a message again ``invisible_ms`` from now; returns its new lease."""
    header = ChangeInvisibleTimeRequestHeader(
        lease.group, lease.read_topic, lease.queue_id, str(lease.handle(offset)), offset, invisible_ms
    )
    answer = await call(at, pops.CHANGE_MESSAGE_INVISIBLETIME, header)
    return lease.renewed(offset, answer.header())
