"""The brokers of this set that the Controllers have registered: only these may copy the log and count as copies.

A slave says its id on the HA link, where anybody can say any id. So the master compares it with what the Controllers
answer to 1006. What they answered before is good for a slave that it lists; before any other slave is turned away they
are asked again, since it may just have registered.
"""

from collections.abc import Awaitable, Callable, Mapping
from math import inf

import trio

from broker.replication.autoswitch.link import Newcomer
from mqcommon.addresses import split_address
from mqcommon.errors import BrokerError, ProtocolError, RemotingError

# The Controllers are asked at most this often, however many strangers connect.
ASK_S = 0.5


def copied_identity(broker_id: int, known: str, other: str) -> str:
    """What to do when the broker ``broker_id`` is ``known`` at one address, and one with its id is at the ``other``."""
    return (
        f"broker {broker_id} is at {known}, and another one with this id at {other}: one of the two runs with a copied"
        " brokerIdentity file. Stop the wrong one and remove the file from its store"
    )


class RegisteredReplicas:
    """``ask`` sends 1006 and returns the addresses for clients by broker id."""

    def __init__(self, ask: Callable[[], Awaitable[Mapping[int, str]]], plain_hosts: frozenset[str]) -> None:
        """``plain_hosts``: written down by hand, so plain peers there may have any address."""
        self._ask = ask
        self._plain_hosts = plain_hosts
        #: What the Controllers answered last.
        self.replicas: Mapping[int, str] = {}
        self._asked_at = -inf
        self._asking = trio.Lock()

    async def objection(self, newcomer: Newcomer) -> str:
        """Why the slave must not be served; "" when it may. ProtocolError when it may try again soon."""
        if not self._fault(newcomer):
            return ""
        try:
            await self.refresh()
        except (BrokerError, RemotingError, ProtocolError) as error:
            raise ProtocolError(
                f"whether broker {newcomer.broker_id} belongs to this set is not known: {error}"
            ) from None
        if newcomer.broker_id not in self.replicas:
            raise ProtocolError(
                f"it says that it is broker {newcomer.broker_id}, which the Controllers do not know in this set; they"
                f" know {', '.join(map(str, sorted(self.replicas))) or 'none'}"
            )
        return self._fault(newcomer)

    async def refresh(self) -> None:
        """Ask the Controllers, at most every `ASK_S`. Errors are those of ``ask``."""
        async with self._asking:
            await trio.sleep_until(self._asked_at + ASK_S)
            self._asked_at = trio.current_time()
            self.replicas = await self._ask()

    def _fault(self, newcomer: Newcomer) -> str:
        broker_id, addr, peer = newcomer
        registered = self.replicas.get(broker_id)
        if registered is None:
            return f"broker {broker_id} is not registered"
        if addr:
            return "" if addr == registered else copied_identity(broker_id, registered, addr)
        host = split_address(peer)[0]
        if host in self._plain_hosts or host == split_address(registered)[0]:
            return ""
        return (
            f"broker {broker_id} is registered at {registered}, but this connection comes from {host}. If it is this"
            " broker nevertheless, add the host to haPlainPeerAddresses of the master"
        )
