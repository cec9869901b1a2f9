"""Where the HA port of the master is that the Controllers name. They only know its address for clients, so it is asked.

RocketMQ's master answers 906, too. One that does not has its HA port where RocketMQ's default puts it, one above.
"""

from broker.replication.find_master import Target
from broker.replication.known_master import KnownMaster
from broker.replication.master_api import Master
from mqcommon.addresses import format_address, split_address
from mqcommon.errors import BrokerError, ProtocolError, RemotingError
from mqcommon.signal import Signal
from remoting.net.client import OpenClient


class SwitchFinder:
    """Finds the master of ``known``; call `changed` when that changes."""

    def __init__(self, known: KnownMaster, open_client: OpenClient) -> None:
        self._known = known
        self._open_client = open_client
        self._changed = Signal()

    async def find(self) -> Target:
        """Where to connect; waits until there is a master. OSError when it does not answer."""
        while self._known.address is None:
            await self._changed.wait()
        addr = self._known.address.addr
        failure = ""
        async with self._open_client() as client:
            try:
                return Target(await Master(client, addr).ha_address(), hello=True)
            except BrokerError:
                host, port = split_address(addr)
                return Target(format_address(host, port + 1), hello=True)
            except (RemotingError, ProtocolError) as error:
                failure = str(error)
        raise OSError(f"the master at {addr} did not say where its HA port is: {failure}")

    def changed(self) -> None:
        """The Controllers name another master."""
        self._changed.set()
