"""Requests to a broker of consumers that pop, one function per request; as in broker_api.py."""

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
    queue_id: int = ANY_QUEUE,
    most: int,
    invisible_ms: int,
    wait_ms: int,
    now_ms: int,
    init_mode: int,
    expression: str,
    kind: str = TAG,
    namespace: str,
) -> list[ReceivedMessage]:
    """Messages of a queue of ``topic``, by default of any one; none when the broker has none within ``wait_ms``."""
    header = PopMessageRequestHeader(
        group, topic, queue_id, most, invisible_ms, wait_ms, now_ms, init_mode, kind, expression
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
