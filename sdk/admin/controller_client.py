"""`ControllerAdmin`: the operations of `Admin` on Controllers, and on what they know of broker sets."""

from collections.abc import Mapping, Sequence

from mqcommon.errors import BrokerError, RemotingError, UserError
from remoting.protocol.requests.controller import (
    BrokerReplicasInfo,
    ControllerMembers,
    GetMetaDataResponseHeader,
    MasterHeader,
)
from remoting.protocol.requests.replication import EpochEntryCache
from sdk import controller_api as api
from sdk.admin.asking import Asking
from sdk.admin.broker_admin_api import broker_epochs
from sdk.checked import checked_methods
from sdk.endpoint import Endpoint


@checked_methods
class ControllerAdmin:
    """Part of `sdk.Admin`. ``addrs``: Controllers of one group; the leader is found among them."""

    _ask: Asking

    async def controller_metadata(self, addr: str) -> GetMetaDataResponseHeader:
        """Who leads the group of the Controller, and where the others are."""
        return await api.metadata(self._ask.at(addr))

    async def controller_config(self, addr: str) -> dict[str, str]:
        """The options of the Controller."""
        return await api.config(self._ask.at(addr))

    async def update_controller_config(self, addr: str, values: Mapping[str, str]) -> None:
        """Change options of the Controller."""
        await api.update_config(self._ask.at(addr), values)

    async def sync_state_sets(self, addrs: Sequence[str], names: Sequence[str]) -> BrokerReplicasInfo:
        """Masters and SyncStateSets of broker sets; unknown names are left out."""
        return await api.sync_state_sets(await self._leader(addrs), names)

    async def elect_master(
        self, addrs: Sequence[str], broker_name: str, broker_id: int, cluster: str | None = None
    ) -> MasterHeader:
        """Make a replica the master of its set. BrokerError 2012 when it is not alive or not in the SyncStateSet."""
        return await api.elect_master(await self._leader(addrs), broker_name, broker_id, cluster)

    async def clean_broker_metadata(
        self,
        addrs: Sequence[str],
        broker_name: str,
        broker_ids: Sequence[int] = (),
        cluster: str | None = None,
        *,
        even_living: bool = False,
    ) -> None:
        """Forget replicas that will not return; all of the set when no ids are given."""
        leader = await self._leader(addrs)
        await api.clean_broker_data(leader, broker_name, broker_ids, cluster, even_living=even_living)

    async def controller_members(
        self, addrs: Sequence[str], action: str = "list", *, node: str | None = None, addr: str | None = None
    ) -> ControllerMembers:
        """The members of the group. ``action``: list, add (``addr``), remove or transfer (``node``)."""
        return await api.members(await self._leader(addrs), action, node=node, addr=addr)

    async def broker_epochs(self, addr: str) -> EpochEntryCache:
        """Which master of its set wrote which part of a broker's log; BrokerError 3 when it has no Controllers."""
        return await broker_epochs(self._ask.at(addr))

    async def _leader(self, addrs: Sequence[str]) -> Endpoint:
        """The leader, as the first of ``addrs`` knows that answers."""
        reasons = []
        for addr in addrs:
            try:
                leader_addr = (await api.metadata(self._ask.at(addr))).controller_leader_address
            except (RemotingError, BrokerError) as error:
                reasons.append(str(error))
                continue
            if leader_addr:
                return self._ask.at(leader_addr)
            reasons.append(f"{addr} knows of no leader")
        raise UserError(f"no leader of the Controllers was found: {'; '.join(reasons) or 'no address is given'}")
