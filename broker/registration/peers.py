"""Requests to the masters of other brokers, found by their names.

NameServers are asked for the addresses (106), one after another until a NameServer answers. The answer is used for
FRESH_S: it may be large, and requests often come in bursts.
Neighbours: topic_spread.py, delivery/logical_queues.py.
"""

import math
from collections.abc import Callable, Sequence

import trio

from skylark.broker.part import Part
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError, RequestRefused
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import OpenClient, RemotingClient, open_client
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.routes import GET_BROKER_CLUSTER_INFO, ClusterInfo

TIMEOUT_MS = 3_000
FRESH_S = 5.0

_Failures = (RemotingError, BrokerError, ProtocolError)


class Peers(Part):
    """The masters of other brokers, for requests to them. ``namesrvs`` returns the NameServers' addresses."""

    def __init__(self, namesrvs: Callable[[], Sequence[str]], open_client: OpenClient = open_client) -> None:
        self._namesrvs = namesrvs
        self._open_client = open_client
        # Made by `run`, before the broker serves requests.
        self._client: RemotingClient | None = None
        self._known = ClusterInfo()
        self._fresh_until = -math.inf

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a client open, until cancelled."""
        async with self._open_client() as self._client:
            task_status.started()
            await trio.sleep_forever()

    async def at(self, broker_name: str) -> Remote:
        """The master of a broker. RequestRefused, so that clients try again, when no NameServer knows it now."""
        info = await self.cluster_info()
        brokers = info.broker_addr_table.get(broker_name)
        addr = None if brokers is None else brokers.broker_addrs.get(MASTER_ID)
        if addr is None:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"broker {broker_name} has no master now; try again later")
        return self.remote(addr)

    async def masters(self, cluster: str) -> dict[str, str]:
        """The masters of a cluster: names and addresses. RequestRefused when no NameServer answers."""
        info = await self.cluster_info()
        table = info.broker_addr_table
        found = {
            name: table[name].broker_addrs.get(MASTER_ID)
            for name in sorted(info.cluster_addr_table.get(cluster, ()))
            if name in table
        }
        return {name: addr for name, addr in found.items() if addr is not None}

    def remote(self, addr: str) -> Remote:
        """The server at ``addr``."""
        assert self._client is not None
        return Remote(self._client, addr, TIMEOUT_MS)

    async def cluster_info(self) -> ClusterInfo:
        """All brokers that a NameServer knows."""
        if trio.current_time() < self._fresh_until:
            return self._known
        last: object = "no NameServer is known"
        for namesrv in self._namesrvs():
            try:
                self._known = (await call(self.remote(namesrv), GET_BROKER_CLUSTER_INFO)).body()
            except _Failures as error:
                last = error
                continue
            self._fresh_until = trio.current_time() + FRESH_S
            return self._known
        raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"other brokers are not known now: {last}")

    def forget(self) -> None:
        """Ask a NameServer anew at the next request, because an address did not work."""
        self._fresh_until = -math.inf
