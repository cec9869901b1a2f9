"""Skylark: a light message queue that speaks RocketMQ's protocol. What is here is public; the packages below are not.

    async with Client("127.0.0.1:9876") as client, Producer(client) as producer, PullConsumer(client) as consumer: ...

skylark             the classes for trio, messages, errors
skylark.aio         the same classes for asyncio; skylark.blocking: for threads
skylark.admin       what an administrator asks and changes; skylark.errors: all errors
skylark.spark       the data source ``rocketmq`` of Spark, and how far its queries are behind
skylark.testing     a cluster inside of a test process
skylark.integrations.faststream, .kombu, .otel: FastStream, Celery, OpenTelemetry
Names are imported on first use, so that `mqadmin --help` does not load the event loop. The packages broker, sdk and so
on stand here as links to the folders at the top of the repository: docs/how/architecture.md says why.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

# pip refuses older versions, but nothing does where a clone is imported as it is.
if sys.version_info < (3, 11):  # noqa: UP036
    raise ImportError("Skylark needs Python 3.11 or later, and this is %s" % sys.version.split()[0])  # noqa: UP031

if TYPE_CHECKING:
    from skylark.mqcommon.errors import (
        BrokerError,
        BufferFull,
        InvalidArgument,
        RemotingError,
        ReplyTimeout,
        RouteNotFound,
        SendFailed,
        SkylarkError,
        UnreadableValue,
        UserError,
    )
    from skylark.mqcommon.message.light import LightMessage
    from skylark.mqcommon.message.message import Message, MessageExt
    from skylark.mqcommon.message.queue import MessageQueue
    from skylark.remoting.net.tls.settings import Tls
    from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
    from skylark.remoting.protocol.requests.topics import TopicConfig
    from skylark.remoting.protocol.signature import Credentials
    from skylark.sdk.admin.client import Admin
    from skylark.sdk.client import Client
    from skylark.sdk.consumer.expression import Sql
    from skylark.sdk.consumer.outcome import ConsumeFrom, ConsumeResult, Later
    from skylark.sdk.consumer.popped import ReceivedMessage
    from skylark.sdk.consumer.problems import Problem
    from skylark.sdk.consumer.pull import PullConsumer
    from skylark.sdk.consumer.push import PushConsumer
    from skylark.sdk.consumer.reader import PullBytes, PullResult, PullStatus
    from skylark.sdk.consumer.retry_policy import RetryPolicy
    from skylark.sdk.consumer.simple import SimpleConsumer
    from skylark.sdk.consumer.stream_message import StreamMessage
    from skylark.sdk.credentials import read_credentials
    from skylark.sdk.position import Position
    from skylark.sdk.producer.producer import Producer, Ticket
    from skylark.sdk.producer.result import BulkResult, SendResult, SendStatus
    from skylark.sdk.producer.transaction import Transaction, TransactionState
    from skylark.sdk.producer.transactional import TransactionProducer
    from skylark.sdk.traces.elasticsearch import ElasticsearchSink
    from skylark.sdk.traces.sink import JsonLinesSink
    from skylark.sdk.values.values import Values, read_value

__all__ = [
    "Admin",
    "BrokerError",
    "BufferFull",
    "BulkResult",
    "Client",
    "ConsumeFrom",
    "ConsumeResult",
    "Credentials",
    "ElasticsearchSink",
    "InvalidArgument",
    "JsonLinesSink",
    "Later",
    "LightMessage",
    "Message",
    "MessageExt",
    "MessageQueue",
    "Position",
    "Problem",
    "Producer",
    "PullBytes",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "ReceivedMessage",
    "RemotingError",
    "ReplyTimeout",
    "RetryPolicy",
    "RouteNotFound",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SkylarkError",
    "Sql",
    "StreamMessage",
    "SubscriptionGroupConfig",
    "Ticket",
    "Tls",
    "TopicConfig",
    "Transaction",
    "TransactionProducer",
    "TransactionState",
    "UnreadableValue",
    "UserError",
    "Values",
    "read_credentials",
    "read_value",
]

_HOMES = {
    "skylark.mqcommon.errors": (
        *("BrokerError", "BufferFull", "InvalidArgument", "RemotingError", "ReplyTimeout", "RouteNotFound"),
        *("SendFailed", "SkylarkError", "UnreadableValue", "UserError"),
    ),
    "skylark.mqcommon.message.light": ("LightMessage",),
    "skylark.mqcommon.message.message": ("Message", "MessageExt"),
    "skylark.mqcommon.message.queue": ("MessageQueue",),
    "skylark.remoting.protocol.requests.groups": ("SubscriptionGroupConfig",),
    "skylark.remoting.protocol.requests.topics": ("TopicConfig",),
    "skylark.remoting.net.tls.settings": ("Tls",),
    "skylark.remoting.protocol.signature": ("Credentials",),
    "skylark.sdk.admin.client": ("Admin",),
    "skylark.sdk.consumer.expression": ("Sql",),
    "skylark.sdk.consumer.outcome": ("ConsumeFrom", "ConsumeResult", "Later"),
    "skylark.sdk.consumer.popped": ("ReceivedMessage",),
    "skylark.sdk.consumer.pull": ("PullConsumer",),
    "skylark.sdk.consumer.problems": ("Problem",),
    "skylark.sdk.consumer.push": ("PushConsumer",),
    "skylark.sdk.consumer.reader": ("PullBytes", "PullResult", "PullStatus"),
    "skylark.sdk.consumer.retry_policy": ("RetryPolicy",),
    "skylark.sdk.consumer.simple": ("SimpleConsumer",),
    "skylark.sdk.consumer.stream_message": ("StreamMessage",),
    "skylark.sdk.credentials": ("read_credentials",),
    "skylark.sdk.position": ("Position",),
    "skylark.sdk.producer.producer": ("Producer", "Ticket"),
    "skylark.sdk.producer.result": ("BulkResult", "SendResult", "SendStatus"),
    "skylark.sdk.producer.transaction": ("Transaction", "TransactionState"),
    "skylark.sdk.producer.transactional": ("TransactionProducer",),
    "skylark.sdk.client": ("Client",),
    "skylark.sdk.traces.elasticsearch": ("ElasticsearchSink",),
    "skylark.sdk.traces.sink": ("JsonLinesSink",),
    "skylark.sdk.values.values": ("Values", "read_value"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from skylark.mqcommon.version import VERSION

        return VERSION
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'skylark' has no attribute {name!r}")


def __dir__() -> list[str]:
    """All public names; names that were not used before are imported now."""
    return sorted({*globals(), *__all__})
