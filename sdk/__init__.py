"""The SDK: send and read messages, and administer clusters.

    async with Client("127.0.0.1:9876") as client, Producer(client) as producer, PullConsumer(client) as consumer: ...

endpoint.py     one request to one server, or to several; broker_api.py, namesrv_api.py: one function each
nameservers.py  where the NameServers' addresses come from, and which one to ask
routes.py       what routes mean (pure); namespaces.py: topics and groups of several tenants (pure)
retry.py        which failures are worth a retry; suspects.py: brokers that did not answer, and probes of them
client.py       ClientInstance: connections, route cache, heartbeats; Client: a shared ClientInstance
membership.py   heartbeats of groups; broker_requests.py: what brokers ask of this client; starting.py: checks
checked.py, credentials.py: checks of arguments; runtime.py: trio, forks; hidden.py, last_resort.py: what users see
producer/  consumer/  admin/  testing/   Producer, the consumers, Admin and mqadmin; a cluster inside of a test process
traces/  sends and deliveries, for a trace topic, a file or Elasticsearch; values/  dataclasses and more, not bytes
blocking/  aio/  the same classes for threads and for asyncio; loop_thread.py: the threads in which their clients run
Names are imported on first use, so that `mqadmin --help` does not load the event loop.
"""

from typing import TYPE_CHECKING, Any

from sdk.hidden import import_home

if TYPE_CHECKING:
    from mqcommon.errors import (
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
    from mqcommon.message.light import LightMessage
    from mqcommon.message.message import Message, MessageExt
    from mqcommon.message.queue import MessageQueue
    from remoting.net.tls.settings import Tls
    from remoting.protocol.requests.groups import SubscriptionGroupConfig
    from remoting.protocol.requests.topics import TopicConfig
    from remoting.protocol.signature import Credentials
    from sdk.admin.client import Admin
    from sdk.client import Client
    from sdk.consumer.expression import Sql
    from sdk.consumer.outcome import ConsumeFrom, ConsumeResult, Later
    from sdk.consumer.popped import ReceivedMessage
    from sdk.consumer.problems import Problem
    from sdk.consumer.pull import PullConsumer
    from sdk.consumer.push import PushConsumer
    from sdk.consumer.reader import PullBytes, PullResult, PullStatus
    from sdk.consumer.retry_policy import RetryPolicy
    from sdk.consumer.simple import SimpleConsumer
    from sdk.consumer.stream_message import StreamMessage
    from sdk.credentials import read_credentials
    from sdk.position import Position
    from sdk.producer.producer import Producer, Ticket
    from sdk.producer.result import BulkResult, SendResult, SendStatus
    from sdk.producer.transaction import Transaction, TransactionState
    from sdk.producer.transactional import TransactionProducer
    from sdk.traces.elasticsearch import ElasticsearchSink
    from sdk.traces.sink import JsonLinesSink
    from sdk.values.values import Values, read_value

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
    "mqcommon.errors": (
        *("BrokerError", "BufferFull", "InvalidArgument", "RemotingError", "ReplyTimeout", "RouteNotFound"),
        *("SendFailed", "SkylarkError", "UnreadableValue", "UserError"),
    ),
    "mqcommon.message.light": ("LightMessage",),
    "mqcommon.message.message": ("Message", "MessageExt"),
    "mqcommon.message.queue": ("MessageQueue",),
    "remoting.protocol.requests.groups": ("SubscriptionGroupConfig",),
    "remoting.protocol.requests.topics": ("TopicConfig",),
    "remoting.net.tls.settings": ("Tls",),
    "remoting.protocol.signature": ("Credentials",),
    "sdk.admin.client": ("Admin",),
    "sdk.consumer.expression": ("Sql",),
    "sdk.consumer.outcome": ("ConsumeFrom", "ConsumeResult", "Later"),
    "sdk.consumer.popped": ("ReceivedMessage",),
    "sdk.consumer.pull": ("PullConsumer",),
    "sdk.consumer.problems": ("Problem",),
    "sdk.consumer.push": ("PushConsumer",),
    "sdk.consumer.reader": ("PullBytes", "PullResult", "PullStatus"),
    "sdk.consumer.retry_policy": ("RetryPolicy",),
    "sdk.consumer.simple": ("SimpleConsumer",),
    "sdk.consumer.stream_message": ("StreamMessage",),
    "sdk.credentials": ("read_credentials",),
    "sdk.position": ("Position",),
    "sdk.producer.producer": ("Producer", "Ticket"),
    "sdk.producer.result": ("BulkResult", "SendResult", "SendStatus"),
    "sdk.producer.transaction": ("Transaction", "TransactionState"),
    "sdk.producer.transactional": ("TransactionProducer",),
    "sdk.client": ("Client",),
    "sdk.traces.elasticsearch": ("ElasticsearchSink",),
    "sdk.traces.sink": ("JsonLinesSink",),
    "sdk.values.values": ("Values", "read_value"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("skylark-mq")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_home(home), name)
    raise AttributeError(f"module 'sdk' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Also the names that nobody has asked for yet, which are imported then."""
    return sorted({*globals(), *__all__})
