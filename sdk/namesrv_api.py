"""Requests of clients and admin tools to a NameServer, one function per request.

As in `broker_api`, BrokerError is raised for codes that are errors. `NameServers` chooses which NameServer to ask.
"""

from collections.abc import Mapping

from remoting.net.call import call
from remoting.protocol.bodies.cluster import ClusterInfo
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.bodies.topic import TopicList
from remoting.protocol.codes import ResponseCode
from remoting.protocol.headers.namesrv import (
    BrokerNameRequestHeader,
    ClusterRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetRouteInfoRequestHeader,
    KVConfigRequestHeader,
    NamespaceRequestHeader,
    PutKVConfigRequestHeader,
)
from remoting.protocol.requests import namesrv as requests
from sdk.config_text import decode_config, encode_config
from sdk.endpoint import Endpoint


async def topic_route(namesrv: Endpoint, topic: str) -> TopicRouteData:
    """The topic's route: its queues and their brokers; code 17 when the topic is unknown."""
    header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
    return (await call(namesrv, requests.GET_ROUTEINFO_BY_TOPIC, header)).body()


async def cluster_info(namesrv: Endpoint) -> ClusterInfo:
    """All clusters, their brokers, and the brokers' addresses."""
    return (await call(namesrv, requests.GET_BROKER_CLUSTER_INFO)).body()


async def topic_list(namesrv: Endpoint) -> TopicList:
    """All topics."""
    return (await call(namesrv, requests.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body()


async def topics_by_cluster(namesrv: Endpoint, cluster: str) -> TopicList:
    """The topics that have queues in the cluster."""
    return (await call(namesrv, requests.GET_TOPICS_BY_CLUSTER, ClusterRequestHeader(cluster))).body()


async def system_topics(namesrv: Endpoint) -> TopicList:
    """The topics that are named after clusters and brokers, and the address of one broker."""
    return (await call(namesrv, requests.GET_SYSTEM_TOPIC_LIST_FROM_NS)).body()


async def delete_topic(namesrv: Endpoint, topic: str, cluster: str | None = None) -> None:
    """Delete the topic's route (only in ``cluster``, if given) until a broker registers the topic again."""
    await call(namesrv, requests.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequestHeader(topic, cluster))


async def wipe_write_perm(namesrv: Endpoint, broker_name: str) -> int:
    """Take the write permission from the broker's topics; returns how many topics changed."""
    answer = await call(namesrv, requests.WIPE_WRITE_PERM_OF_BROKER, BrokerNameRequestHeader(broker_name))
    return answer.header().wipe_topic_count


async def add_write_perm(namesrv: Endpoint, broker_name: str) -> int:
    """Give the write permission back to the broker's topics; returns how many topics changed."""
    answer = await call(namesrv, requests.ADD_WRITE_PERM_OF_BROKER, BrokerNameRequestHeader(broker_name))
    return answer.header().add_topic_count


async def namesrv_config(namesrv: Endpoint) -> dict[str, str]:
    """The current values of all options of the NameServer."""
    return decode_config((await call(namesrv, requests.GET_NAMESRV_CONFIG)).body())


async def update_namesrv_config(namesrv: Endpoint, values: Mapping[str, str]) -> None:
    """Change options while the NameServer runs."""
    await call(namesrv, requests.UPDATE_NAMESRV_CONFIG, None, encode_config(values))


async def put_kv(namesrv: Endpoint, namespace: str, key: str, value: str) -> None:
    """Set a value of the NameServer's own key-value store."""
    await call(namesrv, requests.PUT_KV_CONFIG, PutKVConfigRequestHeader(namespace, key, value))


async def get_kv(namesrv: Endpoint, namespace: str, key: str) -> str | None:
    """A value of the NameServer's own key-value store; None when there is none."""
    answer = await call(namesrv, requests.GET_KV_CONFIG, KVConfigRequestHeader(namespace, key))
    return None if answer.code == ResponseCode.QUERY_NOT_FOUND else answer.header().value or ""


async def delete_kv(namesrv: Endpoint, namespace: str, key: str) -> None:
    """Remove a value of the NameServer's own key-value store."""
    await call(namesrv, requests.DELETE_KV_CONFIG, KVConfigRequestHeader(namespace, key))


async def kv_list(namesrv: Endpoint, namespace: str) -> dict[str, str]:
    """All values of a namespace; empty when there is none."""
    answer = await call(namesrv, requests.GET_KVLIST_BY_NAMESPACE, NamespaceRequestHeader(namespace))
    return {} if answer.code == ResponseCode.QUERY_NOT_FOUND else answer.body().table
