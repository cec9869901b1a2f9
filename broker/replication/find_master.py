"""Finds a slave's master, and whether the master is a Skylark broker: then the link begins with a hello.

A RocketMQ master would misread a hello as offsets, so the slave first asks on the master's port for clients: only a
Skylark broker accepts an offer of CBOR. With a secret that is not asked, since only Skylark masters are followed.
Neighbours: known_master.py (what NameServers say), slave.py (connects).
"""

import logging

import trio

from skylark.broker.options import BrokerOptions
from skylark.broker.replication.known_master import KnownMaster
from skylark.broker.replication.master_api import MasterClient
from skylark.broker.replication.session import MasterTarget
from skylark.mqcommon.addresses import format_address, split_address
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.client import OpenClient, open_client
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.request import Answer
from skylark.remoting.protocol.requests.brokers import GET_BROKER_RUNTIME_INFO

ASK_TIMEOUT_MS = 3_000
# When only the HA address is known, the port for clients is a guess. After this many failures the slave says no hello.
GUESSES = 4
# When a slave that finds no master first logs that: a start of the whole set may take as long.
FIRST_LOG_S = 10.0
LOG_S = 60.0

logger = logging.getLogger(__name__)


class MasterFinder:
    """Finds the master by the options, then by the NameServers' reports; call `changed` when these change.

    ``has_secret``: only masters that say hello are followed, unless haPlainPeerAddresses has their hosts.
    """

    def __init__(
        self,
        known: KnownMaster,
        options: BrokerOptions,
        open_client: OpenClient = open_client,
        *,
        has_secret: bool = False,
    ) -> None:
        self._known = known
        self._options = options
        self._has_secret = has_secret
        self._open_client = open_client
        self._changed = Signal()
        self._guesses = 0

    async def find(self) -> MasterTarget:
        """Where to connect; waits until that is known. OSError when the master does not answer."""
        known = self._known
        wait_s = FIRST_LOG_S
        while not self._options.ha_master_address and (known.address is None or not known.address.ha_addr):
            with trio.move_on_after(wait_s) as waiting:
                await self._changed.wait()
            if waiting.cancelled_caught:
                wait_s = LOG_S
                logger.warning("no master is found: %s", self._missing())
        ha_addr = self._options.ha_master_address
        if not ha_addr:
            assert known.address is not None
            ha_addr = known.address.ha_addr
        if self._has_secret and split_address(ha_addr)[0] not in self._options.plain_hosts:
            return MasterTarget(ha_addr, hello=True)
        if known.address is not None and known.address.ha_addr == ha_addr:
            return await self._ask(known.address.addr, ha_addr)
        # Only haMasterAddress is known, so the port for clients is guessed: with RocketMQ's defaults it is one below. A
        # wrong guess must not keep the slave from its master for ever.
        host, port = split_address(ha_addr)
        guess = format_address(host, port - 1)
        try:
            target, self._guesses = await self._ask(guess, ha_addr), 0
        except OSError:
            self._guesses += 1
            if self._guesses < GUESSES:
                raise
            return MasterTarget(ha_addr, hello=False)
        return target

    def _missing(self) -> str:
        options = self._options
        if not options.has_namesrvs:
            return "neither namesrvAddr nor haMasterAddress is set"
        where = options.namesrv_addr or options.rmq_address_server_domain
        return (
            f"no NameServer of {where} that answers knows a broker of brokerName={options.broker_name}"
            " with brokerId=0; start it, with the same namesrvAddr"
        )

    def changed(self) -> None:
        """Let `find` look again: NameServers report another master."""
        self._changed.set()

    async def _ask(self, addr: str, ha_addr: str) -> MasterTarget:
        """Ask the master at ``addr`` what it is. OSError when it does not answer."""
        failure = ""
        async with self._open_client() as client:
            try:
                answer = await client.invoke(addr, GET_BROKER_RUNTIME_INFO.command(None), ASK_TIMEOUT_MS)
                ours = client.speaks_cbor(addr)
                found = answer.code == ResponseCode.SUCCESS
                table = Answer(GET_BROKER_RUNTIME_INFO, answer).body().table if found else {}
            except (RemotingError, ProtocolError) as error:
                failure = str(error)
        if failure:
            raise OSError(f"the master at {addr} did not say whether it is a Skylark broker: {failure}")
        begin, end = table.get("commitLogMinOffset", ""), table.get("commitLogMaxOffset", "")
        known = begin.isdigit() and end.isdigit() and int(begin) < int(end)
        return MasterTarget(ha_addr, ours, int(begin) if known else None)


class SwitchFinder:
    """Where the HA port is of the master that the Controllers name; call `changed` when ``known`` changes.

    The Controllers only know its address for clients, so the master is asked (906), also a RocketMQ master. A master
    that does not answer 906 is assumed to use listenPort + 1.

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

    async def find(self) -> MasterTarget:
        """Where to connect; waits until there is a master. OSError when it does not answer."""
        while self._known.address is None:
            await self._changed.wait()
        addr = self._known.address.addr
        host, port = split_address(addr)
        failure = ""
        async with self._open_client() as client:
            master = MasterClient(client, addr)
            try:
                ha_addr = await master.ha_address()
            except BrokerError:
                ha_addr = format_address(host, port + 1)
            except (RemotingError, ProtocolError) as error:
                failure = str(error)
            hello = master.is_skylark or (self._must_prove and host not in self._plain_hosts)
        if not failure:
            return MasterTarget(ha_addr, hello)
        raise OSError(f"the master at {addr} did not say where its HA port is: {failure}")

    def changed(self) -> None:
        """Let `find` look again: the Controllers name another master."""
        self._changed.set()
