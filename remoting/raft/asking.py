"""What nodes ask each other about themselves (7111)."""

from collections.abc import Mapping

import trio

from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.requests.raft import RAFT_STATUS, RaftStatusHeader, RaftStatusRequestHeader

ASK_TIMEOUT_MS = 1_000


async def ask_status(client: RemotingClient, group: str, addr: str) -> RaftStatusHeader:
    """The status that the node at ``addr`` reports. RemotingError, BrokerError or ProtocolError when there is none."""
    return (await call(Remote(client, addr, ASK_TIMEOUT_MS), RAFT_STATUS, RaftStatusRequestHeader(group))).header()


async def ask_all(client: RemotingClient, group: str, addrs: Mapping[str, str]) -> dict[str, RaftStatusHeader]:
    """The answers of the nodes that answer, by their names in ``addrs``."""
    seen: dict[str, RaftStatusHeader] = {}

    async def ask(name: str, addr: str) -> None:
        try:
            seen[name] = await ask_status(client, group, addr)
        except (RemotingError, BrokerError, ProtocolError):
            return  # this node is missing in the answer

    async with trio.open_nursery() as nursery:
        for name, addr in addrs.items():
            nursery.start_soon(ask, name, addr)
    return seen
