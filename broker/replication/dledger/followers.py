"""What the leader's tools and metrics show of the other members: who answers, and how far each one is.

Raft knows how many entries a member has; here that becomes an offset of the commit log, and the member an address that
clients know. `AckLedger` has it, as it has slaves of other modes.
"""

from collections.abc import Callable

import trio

from skylark.broker.replication.dledger.entry_index import EntryIndex
from skylark.broker.writing.waits import AckLedger
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError
from skylark.remoting.raft.node import RaftNode

# How often members are asked for the addresses that are not known yet.
ASK_S = 1.0


class FollowerReport:
    """Shows the members of the group in the ledger of slaves, so that tools see how far they are.

    Call `show` often while this broker may be the master; `find` runs until cancelled.
    """

    def __init__(self, acks: AckLedger, index: EntryIndex, log_start: Callable[[], int]) -> None:
        self._acks = acks
        self._index = index
        self._log_start = log_start
        # By id: addresses for clients.
        self._client_addrs: dict[str, str] = {}
        # The ids of those in the ledger, by their addresses in the group.
        self._shown: dict[str, str] = {}

    def show(self, node: RaftNode | None) -> None:
        """Bring the ledger up to date. ``node``: None while this broker is no master."""
        followers = {} if node is None else node.followers()
        addrs = {} if node is None else node.members.all
        present = {addrs[name]: name for name, each in followers.items() if each.answers and name in self._client_addrs}
        # An address that another member has now counts as gone first: its offset must not be taken over.
        for addr in [addr for addr, name in self._shown.items() if present.get(addr) != name]:
            del self._shown[addr]
            self._acks.disconnected(addr)
        for addr, name in present.items():
            if addr not in self._shown:
                self._shown[addr] = name
                self._acks.connected(addr, trio.current_time(), self._client_addrs[name], self._log_start())
            self._acks.acked(addr, self._index.end(max(followers[name].match, self._index.first - 1)))

    async def find(self, node: RaftNode) -> None:
        """Ask members where clients reach them, while this one leads."""
        while True:
            await trio.sleep(ASK_S)
            for name, addr in node.members.all.items() if node.is_leader else ():
                if name not in self._client_addrs and name != node.node:
                    try:
                        self._client_addrs[name] = await node.client_addr_of(addr)
                    except (RemotingError, BrokerError, ProtocolError):
                        continue  # asked again
