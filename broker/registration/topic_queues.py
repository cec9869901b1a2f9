"""The queues of topics on all brokers, as NameServers know them; fetched on demand, and cached for FRESH_S.

A broker without NameServers knows only its own queues. While no NameServer answers, the last answer stays in use.
Neighbour: delivery/queue_assignment.py.
"""

import trio

from skylark.broker.identity import Identity
from skylark.broker.meta.topics import Topics
from skylark.broker.options import BrokerOptions
from skylark.broker.registration.namesrv_list import NameServerList
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import PERM_READ
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.routes import (
    GET_ROUTEINFO_BY_TOPIC,
    GetRouteInfoRequestHeader,
    QueueData,
    TopicRouteData,
)

# RocketMQ's loadBalancePollNameServerInterval.
FRESH_S = 30.0
# How soon NameServers are asked again after no NameServer answered.
RETRY_S = 5.0
# The time limit of a question to a NameServer; the client that asked this broker waits as long.
TIMEOUT_MS = 2_000
MAX_TOPICS = 1_000


@lazy_dataclass(frozen=True, slots=True)
class _CachedQueues:
    #: None: no NameServer has said anything about the topic.
    queues: list[MessageQueue] | None
    fresh_until: float


class TopicQueues:
    """A cache of topics' queues, filled from NameServers."""

    def __init__(self, identity: Identity, topics: Topics, options: BrokerOptions, namesrvs: NameServerList) -> None:
        self._identity = identity
        self._topics = topics
        self._options = options
        self._namesrvs = namesrvs
        # In the order in which topics were fetched; the oldest is dropped first.
        self._known: dict[str, _CachedQueues] = {}
        self._asking: dict[str, trio.Event] = {}

    async def readable(self, client: RemotingClient, topic: str) -> list[MessageQueue] | None:
        """The topic's readable queues on all brokers; None when no NameServer has answered."""
        if not self._options.has_namesrvs:
            return self._own(topic)
        known = self._known.get(topic)
        if known is None or known.fresh_until <= trio.current_time():
            known = await self._asked(client, topic)
        return None if known is None else known.queues

    async def _asked(self, client: RemotingClient, topic: str) -> _CachedQueues | None:
        """Ask the NameServers, or wait for the answer to another request's question."""
        answered = self._asking.get(topic)
        if answered is not None:
            await answered.wait()
            return self._known.get(topic)
        answered = self._asking[topic] = trio.Event()
        try:
            found = await self._fetch(client, topic)
        finally:
            del self._asking[topic]
            answered.set()
        # When no NameServer answers, the previous queues stay in use, and NameServers are asked again soon.
        now = trio.current_time()
        before = self._known.pop(topic, None)
        if found is None:
            known = _CachedQueues(before.queues if before is not None else None, now + RETRY_S)
        else:
            known = _CachedQueues(found, now + FRESH_S)
        while len(self._known) >= MAX_TOPICS:
            del self._known[next(iter(self._known))]
        self._known[topic] = known
        return known

    async def _fetch(self, client: RemotingClient, topic: str) -> list[MessageQueue] | None:
        header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
        for addr in self._namesrvs.addrs:
            try:
                route = (await call(Remote(client, addr, TIMEOUT_MS), GET_ROUTEINFO_BY_TOPIC, header)).body()
            except BrokerError as error:
                # This is an answer, too: all NameServers know the same brokers. After other errors the next NameServer
                # is asked.
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    return []
            except (RemotingError, ProtocolError):
                continue
            else:
                return _readable_queues(topic, route)
        return None

    def _own(self, topic: str) -> list[MessageQueue]:
        config = self._topics.get(topic)
        if config is None:
            return []
        own = QueueData(self._identity.broker_name, config.read_queue_nums, config.write_queue_nums, config.perm)
        return _readable_queues(topic, TopicRouteData([own]))


def _readable_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    return [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & PERM_READ
        for queue_id in range(data.read_queue_nums)
    ]
