"""Routes of this broker's own topics, for its own proxy: requests that usually NameServers answer.

With ``enableProxy`` a test needs no more than a broker without NameServers: the proxy, and tools that make topics and
groups, use the broker as the NameServer of a cluster in which it is the only broker. There are no key-value pairs.
"""

from skylark.broker.identity import Identity
from skylark.broker.meta.topics import Topics
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.routes import (
    GET_BROKER_CLUSTER_INFO,
    GET_KV_CONFIG,
    GET_KVLIST_BY_NAMESPACE,
    GET_ROUTEINFO_BY_TOPIC,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)


class OwnRoutes(Part):
    """Answers requests for routes with this broker's own topics and address."""

    def __init__(self, identity: Identity, topics: Topics, options: BrokerOptions) -> None:
        self._identity = identity
        self._topics = topics
        self._is_on = options.enable_proxy and not options.has_namesrvs

    def handlers(self) -> dict[int, Handler]:
        if not self._is_on:
            return {}
        return {
            GET_ROUTEINFO_BY_TOPIC.code: self.route,
            GET_BROKER_CLUSTER_INFO.code: self.cluster,
            GET_KV_CONFIG.code: self.no_pair,
            GET_KVLIST_BY_NAMESPACE.code: self.no_pair,
        }

    def route(self, channel: Channel, request: Command) -> Command:
        """105: the queues of a topic."""
        topic = GET_ROUTEINFO_BY_TOPIC.header(request).topic
        config = self._topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"this broker has no topic {topic}")
        queues = QueueData(
            self._identity.broker_name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.topic_sys_flag,
        )
        found = TopicRouteData([queues], [self._broker()])
        return answer_with(GET_ROUTEINFO_BY_TOPIC, request, found, channel.max_frame_bytes)

    def cluster(self, channel: Channel, request: Command) -> Command:
        """106: this broker."""
        name, cluster = self._identity.broker_name, self._identity.cluster_name
        info = ClusterInfo({name: self._broker()}, {cluster: [name]})
        return answer_with(GET_BROKER_CLUSTER_INFO, request, info, channel.max_frame_bytes)

    def no_pair(self, channel: Channel, request: Command) -> Command:
        """101 and 219: there is no key. Tools that make topics look for the records of ordered topics."""
        raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, "a broker without NameServers has no key-value pairs")

    def _broker(self) -> BrokerData:
        identity = self._identity
        return BrokerData(identity.cluster_name, identity.broker_name, {identity.broker_id: identity.addr})
