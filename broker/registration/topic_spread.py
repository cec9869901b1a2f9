"""Creates topics that a send has created here on the other masters of the cluster (autoCreateOnAllMasters).

A producer that meets an unknown topic sends to one broker after another, and each broker creates the topic at its first
message. Until then the topic has few queues, on few brokers; if the producer ends early, this stays so. The broker and
not the SDK creates the topic elsewhere, so that clients of every kind benefit. This broker asks the other masters
whether they have the topic, and creates it on the masters that lack it, with RocketMQ's own request (17). RocketMQ's
brokers answer both requests since 5.0; older brokers are left out, as they cannot say whether they have the topic.
The work is done in the background, one topic after another. A failure is logged and not retried: the topic works on
this broker, and other brokers create it at the first message that they get.
"""

import logging

import trio

from skylark.broker.identity import Identity
from skylark.broker.meta.topics import Topics
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.registration.peers import Peers
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError, RequestRefused
from skylark.mqcommon.names import AUTO_CREATE_TOPIC
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.call import Remote, call
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.topics import (
    GET_TOPIC_CONFIG,
    UPDATE_AND_CREATE_TOPIC,
    CreateTopicRequestHeader,
    GetTopicConfigRequestHeader,
    TopicConfig,
)

logger = logging.getLogger(__name__)

# Topics that wait for their turn. More are left out.
MAX_WAITING = 1_000
# Masters that are asked at the same time.
AT_ONCE = 16

_Failures = (RemotingError, BrokerError, ProtocolError)


class TopicSpread(Part):
    """Creates topics that a send has created here on all masters of the cluster, too (autoCreateOnAllMasters)."""

    def __init__(self, identity: Identity, topics: Topics, options: BrokerOptions, peers: Peers) -> None:
        self._identity = identity
        self._topics = topics
        self._options = options
        self._peers = peers
        self._waiting: dict[str, None] = {}
        self._wanted = Signal()

    def created(self, topic: str) -> None:
        """Have `run` create ``topic``, which a send has created here, on the other masters, if the options say so."""
        if not self._options.auto_create_on_all_masters:
            return
        if len(self._waiting) >= MAX_WAITING:
            logger.warning("topic %s is created on this broker only: %d others wait", topic, MAX_WAITING)
            return
        self._waiting[topic] = None
        self._wanted.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled."""
        task_status.started()
        while True:
            await self._wanted.wait()
            while self._waiting:
                topic = next(iter(self._waiting))
                del self._waiting[topic]
                config = self._topics.get(topic)
                if config is not None:  # else it is deleted again
                    await self._spread(config)

    async def _spread(self, config: TopicConfig) -> None:
        try:
            masters = await self._peers.masters(self._identity.cluster_name)
        except RequestRefused as error:
            logger.warning("topic %s is created on this broker only: %s", config.topic_name, error.remark)
            return
        limit = trio.CapacityLimiter(AT_ONCE)
        async with trio.open_nursery() as nursery:
            for name, addr in masters.items():
                if name != self._identity.broker_name:
                    nursery.start_soon(self._create_at, addr, config, limit)

    async def _create_at(self, addr: str, config: TopicConfig, limit: trio.CapacityLimiter) -> None:
        at, name = self._peers.remote(addr), config.topic_name
        async with limit:
            try:
                if await _has(at, name):
                    return
                header = CreateTopicRequestHeader(
                    name,
                    AUTO_CREATE_TOPIC,
                    config.read_queue_nums,
                    config.write_queue_nums,
                    config.perm,
                    config.topic_filter_type,
                    config.order,
                    config.topic_sys_flag,
                )
                await call(at, UPDATE_AND_CREATE_TOPIC, header)
            except _Failures as error:
                logger.warning("topic %s, which a send has created here, is not created at %s: %s", name, addr, error)
            else:
                logger.info("topic %s, which a send has created here, is created at %s, too", name, addr)


async def _has(at: Remote, topic: str) -> bool:
    try:
        await call(at, GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic, lo=True))
    except BrokerError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return False
    return True
