"""The NameServers of this broker: namesrvAddr, or what an address server lists. A name stands for all its addresses.

Names are resolved, and the address server is asked, at the start and every fetchNamesrvAddrInterval, as in RocketMQ; a
new namesrvAddr (updateBrokerConfig) takes effect within a second. If a name cannot be resolved, or the list cannot be
fetched, the last known addresses stay in use. A name that has stood for several addresses is not used as an address
again: its last server would seem to be another one, and the broker would leave that server's routes for a moment.
Neighbours: remoting/net/address_server.py (the requests), registrar.py (registers with new NameServers, and unregisters
from removed NameServers).
"""

import logging
from collections.abc import Callable

import trio

from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.address_server import AddressServer, address_server_url, resolved
from skylark.remoting.net.sockets import connect_reason

logger = logging.getLogger(__name__)

# How often the address server is asked while it has not listed any NameServer yet.
FIRST_RETRY_S = 1.0


class NameServerList(Part):
    """Keeps the list of NameServers up to date: ``addrs``, each once.

    ``on_change`` are called after each change of ``addrs``.
    """

    tick_interval_ms = 1_000

    def __init__(
        self,
        options: BrokerOptions,
        server: AddressServer | None = None,
    ) -> None:
        self._options = options
        if server is None and options.fetch_namesrv_addr_by_address_server:
            domain, subgroup = options.rmq_address_server_domain, options.rmq_address_server_sub_group
            server = AddressServer(address_server_url(domain, subgroup))
        self._server = server
        # What the address server has listed, and the addresses behind each name.
        self._listed: tuple[str, ...] = ()
        self._behind: dict[str, list[str]] = {}
        self._failing: set[str] = set()
        self._text = options.namesrv_addr
        self._wanted = Signal()
        self.addrs = tuple(options.namesrv_addrs)
        self.on_change: list[Callable[[], None]] = []

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the list up to date, until cancelled. It counts as started when names have been looked up once."""
        await self._refresh()
        task_status.started()
        while True:
            waits = self._server is not None and not self._options.namesrv_addr and not self._listed
            with trio.move_on_after(FIRST_RETRY_S if waits else self._options.fetch_namesrv_addr_interval / 1000):
                await self._wanted.wait()
            await self._refresh()

    def has_behind_name(self, addr: str) -> bool:
        """Whether ``addr`` is a name whose servers are in ``addrs``, under addresses of their own."""
        return addr not in self.addrs and addr in self._behind

    def tick(self) -> None:
        """Notice a changed namesrvAddr."""
        if self._options.namesrv_addr != self._text:
            self._wanted.set()

    async def _refresh(self) -> None:
        self._text = self._options.namesrv_addr
        given = tuple(self._options.namesrv_addrs)
        if not given and self._server is not None:
            given = await self._fetched(self._server)
        if self._options.fetch_name_srv_addr_by_dns_lookup:
            async with trio.open_nursery() as nursery:
                for addr in given:
                    nursery.start_soon(self._resolve_name, addr)
        self._behind = {addr: self._behind.get(addr, [addr]) for addr in given}
        addrs = tuple(dict.fromkeys(each for addr in given for each in self._behind[addr]))
        if addrs == self.addrs:
            return
        logger.info("the NameServers are %s now, before: %s", ";".join(addrs) or "none", ";".join(self.addrs) or "none")
        self.addrs = addrs
        for changed in self.on_change:
            changed()

    async def _fetched(self, server: AddressServer) -> tuple[str, ...]:
        try:
            self._listed = await server.fetch()
        except SkylarkError as error:
            self._log_once(server.url, f"the address server {server.url} did not list NameServers: {error}")
        else:
            self._failing.discard(server.url)
        return self._listed

    async def _resolve_name(self, addr: str) -> None:
        try:
            self._behind[addr] = await resolved(addr, keeps_name=self._behind.get(addr, [addr]) == [addr])
        except OSError as error:
            self._log_once(addr, f"the NameServer {addr} cannot be looked up: {connect_reason(error)}")
        else:
            self._failing.discard(addr)

    def _log_once(self, what: str, text: str) -> None:
        if what not in self._failing:
            self._failing.add(what)
            logger.warning("%s; what was known before stays in use, still trying", text)
