"""Requests of clients to a NameServer, one function per request. `Admin` has those of tools.

As in `broker_api`, BrokerError is raised for codes that are errors. `NameServers` chooses which NameServer to ask.
A server that does not know a request of every NameServer is none: NotNameServer is raised then.
"""

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from mqcommon.errors import BrokerError, NotNameServer
from remoting.net.call import call
from remoting.protocol.codes import ResponseCode
from remoting.protocol.requests import routes as requests
from remoting.protocol.requests.routes import ClusterInfo, GetRouteInfoRequestHeader, TopicRouteData
from sdk.endpoint import Endpoint

P = ParamSpec("P")
T = TypeVar("T")


def every_namesrv_knows(
    ask: Callable[Concatenate[Endpoint, P], Awaitable[T]],
) -> Callable[Concatenate[Endpoint, P], Coroutine[Any, Any, T]]:
    """``ask``, which raises NotNameServer when the server does not know the request."""

    @wraps(ask)
    async def asking(namesrv: Endpoint, /, *args: P.args, **named: P.kwargs) -> T:
        try:
            return await ask(namesrv, *args, **named)
        except BrokerError as error:
            if isinstance(error, NotNameServer) or error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise NotNameServer(error, namesrv.client.broker_name_at(namesrv.addr)) from None

    return asking


@every_namesrv_knows
async def topic_route(namesrv: Endpoint, topic: str) -> TopicRouteData:
    """The topic's route: its queues and their brokers; code 17 when the topic is unknown."""
    header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
    return (await call(namesrv, requests.GET_ROUTEINFO_BY_TOPIC, header)).body()


@every_namesrv_knows
async def cluster_info(namesrv: Endpoint) -> ClusterInfo:
    """All clusters, their brokers, and the brokers' addresses."""
    return (await call(namesrv, requests.GET_BROKER_CLUSTER_INFO)).body()
