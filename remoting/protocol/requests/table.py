"""All descriptions of requests, by their codes and by RocketMQ's names of the codes.

Importing this module imports every family of requests. Clients, which start often, import only those they use.
"""

from collections.abc import Mapping
from typing import Any, Final

from skylark.remoting.protocol.request import Request
from skylark.remoting.protocol.requests import (
    acl,
    auth,
    backups,
    brokers,
    clients,
    consuming,
    controller,
    groups,
    healing,
    offsets,
    pops,
    proxied,
    pulls,
    query,
    raft,
    registrations,
    replication,
    routes,
    scrubs,
    sends,
    shrinking,
    tier,
    topics,
    transactions,
)

AnyRequest = Request[Any, Any, Any, Any]

FAMILIES: Final = (
    acl, auth, backups, brokers, clients, consuming, controller, groups, healing, offsets, pops, proxied, pulls, query,
    raft, registrations, replication, routes, scrubs, sends, shrinking, tier, topics, transactions,
)  # fmt: skip
#: Each description is a constant whose name is RocketMQ's name of the code.
BY_NAME: Final[Mapping[str, AnyRequest]] = {
    name: value for family in FAMILIES for name, value in vars(family).items() if isinstance(value, Request)
}
BY_CODE: Final[Mapping[int, AnyRequest]] = {request.code: request for request in BY_NAME.values()}
