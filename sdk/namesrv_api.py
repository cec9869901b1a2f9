"""What clients and admin tools ask of a NameServer: one function a request.

As in `broker_api`: BrokerError for codes that are errors; which NameServer to ask is `NameServers`' business.
"""

from collections.abc import Mapping

from remoting.protocol.bodies import decode_body
from remoting.protocol.bodies.cluster import ClusterInfo
from remoting.protocol.bodies.kvtable import KVTable
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.bodies.topic import TopicList
from remoting.protocol.codes import RequestCode, ResponseCode
from sdk.config_text import decode_config, encode_config
from sdk.endpoint import Endpoint, int_field


async def topic_route(namesrv: Endpoint, topic: str) -> TopicRouteData:
    """Where the topic's queues are; code 17 when not known."""
    ext = {"topic": topic, "acceptStandardJsonOnly": True}
    answer = await namesrv.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
    return decode_body(TopicRouteData, answer.body, answer.codec)


async def cluster_info(namesrv: Endpoint) -> ClusterInfo:
    """All clusters, their brokers, and the brokers' addresses."""
    answer = await namesrv.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    return decode_body(ClusterInfo, answer.body, answer.codec)


async def topic_list(namesrv: Endpoint) -> TopicList:
    """All topics."""
    answer = await namesrv.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    return decode_body(TopicList, answer.body, answer.codec)


async def topics_by_cluster(namesrv: Endpoint, cluster: str) -> TopicList:
    """The topics that have queues in the cluster."""
    answer = await namesrv.ask(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": cluster})
    return decode_body(TopicList, answer.body, answer.codec)


async def system_topics(namesrv: Endpoint) -> TopicList:
    """The topics named after clusters and brokers, and the address of some broker."""
    answer = await namesrv.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    return decode_body(TopicList, answer.body, answer.codec)


async def delete_topic(namesrv: Endpoint, topic: str, cluster: str | None = None) -> None:
    """Forget the topic's route (in one cluster, when named) until a broker registers it again."""
    ext = {"topic": topic} if cluster is None else {"topic": topic, "clusterName": cluster}
    await namesrv.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext)


async def wipe_write_perm(namesrv: Endpoint, broker_name: str) -> int:
    """Keep producers away from the broker; returns how many topics that touched."""
    answer = await namesrv.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": broker_name})
    return int_field(answer, "wipeTopicCount")


async def add_write_perm(namesrv: Endpoint, broker_name: str) -> int:
    """Let producers come back to the broker; returns how many topics that touched."""
    answer = await namesrv.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": broker_name})
    return int_field(answer, "addTopicCount")


async def namesrv_config(namesrv: Endpoint) -> dict[str, str]:
    """Every option of the NameServer as it runs."""
    answer = await namesrv.ask(RequestCode.GET_NAMESRV_CONFIG)
    return decode_config(answer.body)


async def update_namesrv_config(namesrv: Endpoint, values: Mapping[str, str]) -> None:
    """Change options while the NameServer runs."""
    await namesrv.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, encode_config(values))


async def put_kv(namesrv: Endpoint, namespace: str, key: str, value: str) -> None:
    """Set a value of the NameServer's own key-value store."""
    await namesrv.ask(RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value})


async def get_kv(namesrv: Endpoint, namespace: str, key: str) -> str | None:
    """A value of the NameServer's own key-value store; None when there is none."""
    accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
    answer = await namesrv.ask(RequestCode.GET_KV_CONFIG, {"namespace": namespace, "key": key}, accept=accept)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    return str((answer.ext or {}).get("value", ""))


async def delete_kv(namesrv: Endpoint, namespace: str, key: str) -> None:
    """Remove a value of the NameServer's own key-value store."""
    await namesrv.ask(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})


async def kv_list(namesrv: Endpoint, namespace: str) -> dict[str, str]:
    """All values of a namespace; empty when there is none."""
    accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
    answer = await namesrv.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace}, accept=accept)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return {}
    return dict(decode_body(KVTable, answer.body, answer.codec).table)
