"""Requests of clients and admin tools to a NameServer, one function per request.

As in `broker_api`, BrokerError is raised for codes that are errors. `NameServers` chooses which NameServer to ask.
A server that does not know a request of every NameServer is none: NotNameServer is raised then.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from mqcommon.errors import BrokerError, NotNameServer
from remoting.net.call import call
from remoting.protocol.codes import ResponseCode
from remoting.protocol.requests import routes as requests
from remoting.protocol.requests.routes import (
    BrokerNameRequestHeader,
    ClusterInfo,
    ClusterRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetRouteInfoRequestHeader,
    KVConfigRequestHeader,
    NamespaceRequestHeader,
    PutKVConfigRequestHeader,
    TopicRouteData,
)
from remoting.protocol.requests.topics import TopicList
from sdk.config_text import decode_config, encode_config
from sdk.endpoint import Endpoint

P = ParamSpec("P")
T = TypeVar("T")


def _every_namesrv_knows(
    ask: Callable[Concatenate[Endpoint, P], Awaitable[T]],
) -> Callable[Concatenate[Endpoint, P], Coroutine[Any, Any, T]]:
    @wraps(ask)
    async def asking(namesrv: Endpoint, /, *args: P.args, **named: P.kwargs) -> T:
        try:
            return await ask(namesrv, *args, **named)
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise NotNameServer(error, namesrv.client.broker_name_at(namesrv.addr)) from None

    return asking


@_every_namesrv_knows
async def topic_route(namesrv: Endpoint, topic: str) -> TopicRouteData:
    """The topic's route: its queues and their brokers; code 17 when the topic is unknown."""
    header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
    return (await call(namesrv, requests.GET_ROUTEINFO_BY_TOPIC, header)).body()


@_every_namesrv_knows
async def cluster_info(namesrv: Endpoint) -> ClusterInfo:
    """All clusters, their brokers, and the brokers' addresses."""
    return (await call(namesrv, requests.GET_BROKER_CLUSTER_INFO)).body()


@_every_namesrv_knows
async def topic_list(namesrv: Endpoint) -> TopicList:
    """All topics."""
    return (await call(namesrv, requests.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body()


@_every_namesrv_knows
async def topics_by_cluster(namesrv: Endpoint, cluster: str) -> TopicList:
    """The topics that have queues in the cluster."""
    return (await call(namesrv, requests.GET_TOPICS_BY_CLUSTER, ClusterRequestHeader(cluster))).body()


@_every_namesrv_knows
async def system_topics(namesrv: Endpoint) -> TopicList:
    """The topics that are named after clusters and brokers, and the address of one broker."""
    return (await call(namesrv, requests.GET_SYSTEM_TOPIC_LIST_FROM_NS)).body()


@_every_namesrv_knows
async def delete_topic(namesrv: Endpoint, topic: str, cluster: str | None = None) -> None:
    """Delete the topic's route (only in ``cluster``, if given) until a broker registers the topic again."""
    await call(namesrv, requests.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequestHeader(topic, cluster))


@_every_namesrv_knows
async def wipe_write_perm(namesrv: Endpoint, broker_name: str) -> int:
    """Take the write permission from the broker's topics; returns how many topics changed."""
    answer = await call(namesrv, requests.WIPE_WRITE_PERM_OF_BROKER, BrokerNameRequestHeader(broker_name))
    return answer.header().wipe_topic_count


async def add_write_perm(namesrv: Endpoint, broker_name: str) -> int:
    """Give the write permission back to the broker's topics; returns how many topics changed."""
    answer = await call(namesrv, requests.ADD_WRITE_PERM_OF_BROKER, BrokerNameRequestHeader(broker_name))
    return answer.header().add_topic_count


@_every_namesrv_knows
async def namesrv_config(namesrv: Endpoint) -> dict[str, str]:
    """The current values of all options of the NameServer."""
    return decode_config((await call(namesrv, requests.GET_NAMESRV_CONFIG)).body())


@_every_namesrv_knows
async def update_namesrv_config(namesrv: Endpoint, values: Mapping[str, str]) -> None:
    """Change options while the NameServer runs."""
    await call(namesrv, requests.UPDATE_NAMESRV_CONFIG, None, encode_config(values))


@_every_namesrv_knows
async def put_kv(namesrv: Endpoint, namespace: str, key: str, value: str) -> None:
    """Set a value of the NameServer's own key-value store."""
    await call(namesrv, requests.PUT_KV_CONFIG, PutKVConfigRequestHeader(namespace, key, value))


@_every_namesrv_knows
async def get_kv(namesrv: Endpoint, namespace: str, key: str) -> str | None:
    """A value of the NameServer's own key-value store; None when there is none."""
    answer = await call(namesrv, requests.GET_KV_CONFIG, KVConfigRequestHeader(namespace, key))
    return None if answer.code == ResponseCode.QUERY_NOT_FOUND else answer.header().value or ""


@_every_namesrv_knows
async def delete_kv(namesrv: Endpoint, namespace: str, key: str) -> None:
    """Remove a value of the NameServer's own key-value store."""
    await call(namesrv, requests.DELETE_KV_CONFIG, KVConfigRequestHeader(namespace, key))


@_every_namesrv_knows
async def kv_list(namesrv: Endpoint, namespace: str) -> dict[str, str]:
    """All values of a namespace; empty when there is none."""
    answer = await call(namesrv, requests.GET_KVLIST_BY_NAMESPACE, NamespaceRequestHeader(namespace))
    return {} if answer.code == ResponseCode.QUERY_NOT_FOUND else answer.body().table
