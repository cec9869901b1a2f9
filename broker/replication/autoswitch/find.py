"""Where the HA port of the master is that the Controllers name. They only know its address for clients, so it is asked.

RocketMQ's master answers 906, too. A master that does not answer 906 is assumed to use listenPort + 1.
"""

from broker.replication.find_master import Target
from broker.replication.known_master import KnownMaster
from broker.replication.master_api import Master
from mqcommon.addresses import format_address, split_address
from mqcommon.errors import BrokerError, ProtocolError, RemotingError
from mqcommon.signal import Signal
from remoting.net.client import OpenClient


class SwitchFinder:
    """Finds the master of ``known``; call `changed` when that changes.

    ``must_prove``: only masters that say hello are followed, unless ``plain_hosts`` has their hosts.
    """

    def __init__(
        self, known: KnownMaster, open_client: OpenClient, plain_hosts: frozenset[str], *, must_prove: bool
    ) -> None:
        self._known = known
        self._plain_hosts = plain_hosts
        self._must_prove = must_prove
        self._open_client = open_client
        self._changed = Signal()

    async def find(self) -> Target:
        """Where to connect; waits until there is a master. OSError when it does not answer."""
        while self._known.address is None:
            await self._changed.wait()
        addr = self._known.address.addr
        host, port = split_address(addr)
        failure = ""
        async with self._open_client() as client:
            master = Master(client, addr)
            try:
                ha_addr = await master.ha_address()
            except BrokerError:
                ha_addr = format_address(host, port + 1)
            except (RemotingError, ProtocolError) as error:
                failure = str(error)
            hello = master.is_skylark or (self._must_prove and host not in self._plain_hosts)
        if not failure:
            return Target(ha_addr, hello)
        raise OSError(f"the master at {addr} did not say where its HA port is: {failure}")

    def changed(self) -> None:
        """The Controllers name another master."""
        self._changed.set()
