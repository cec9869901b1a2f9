"""Requests of admin tools to a Controller, one function per request. All but the first three go to the leader."""

from collections.abc import Mapping, Sequence

import orjson

from remoting.net.call import call
from remoting.protocol.requests import controller as requests
from remoting.protocol.requests.controller import (
    BrokerReplicasInfo,
    CleanBrokerDataRequestHeader,
    ControllerMembers,
    ControllerMembersRequestHeader,
    ElectMasterRequestHeader,
    GetMetaDataResponseHeader,
    MasterHeader,
)
from sdk.config_text import decode_config, encode_config
from sdk.endpoint import Endpoint


async def metadata(controller: Endpoint) -> GetMetaDataResponseHeader:
    """Who leads the group, and where its Controllers are."""
    return (await call(controller, requests.CONTROLLER_GET_METADATA_INFO)).header()


async def config(controller: Endpoint) -> dict[str, str]:
    """The current values of all options of the Controller."""
    return decode_config((await call(controller, requests.GET_CONTROLLER_CONFIG)).body())


async def update_config(controller: Endpoint, values: Mapping[str, str]) -> None:
    """Change options while the Controller runs."""
    await call(controller, requests.UPDATE_CONTROLLER_CONFIG, None, encode_config(values))


async def sync_state_sets(leader: Endpoint, names: Sequence[str]) -> BrokerReplicasInfo:
    """The sets of these names, as far as they exist."""
    return (await call(leader, requests.CONTROLLER_GET_SYNC_STATE_DATA, None, orjson.dumps(list(names)))).body()


async def elect_master(leader: Endpoint, name: str, broker_id: int, cluster: str | None) -> MasterHeader:
    """Make this replica the master of its set."""
    header = ElectMasterRequestHeader(name, cluster, broker_id, designate_elect=True)
    return (await call(leader, requests.CONTROLLER_ELECT_MASTER, header)).header()


async def clean_broker_data(
    leader: Endpoint, name: str, ids: Sequence[int], cluster: str | None, *, even_living: bool
) -> None:
    """Forget replicas of a set; no ids: all."""
    to_clean = ";".join(map(str, ids)) or None
    await call(leader, requests.CLEAN_BROKER_DATA, CleanBrokerDataRequestHeader(name, cluster, to_clean, even_living))


async def members(leader: Endpoint, action: str, *, node: str | None, addr: str | None) -> ControllerMembers:
    """Change the members of the group of Controllers; the members afterwards."""
    return (await call(leader, requests.CONTROLLER_MEMBERS, ControllerMembersRequestHeader(action, node, addr))).body()
