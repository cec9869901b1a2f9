"""The group of Controllers, as a broker asks it: the leader is found (1005), and found again when it changes."""

import logging
from collections.abc import Sequence
from typing import Any

import trio

from mqcommon.errors import BrokerError, NoController, ProtocolError, RemotingError, RequestTimeout
from remoting.net.call import Remote, call
from remoting.net.client import RemotingClient
from remoting.protocol.codes import ResponseCode
from remoting.protocol.request import AB, AH, Answer, Request
from remoting.protocol.requests.controller import CONTROLLER_GET_METADATA_INFO, GetMetaDataResponseHeader

logger = logging.getLogger(__name__)

TIMEOUT_MS = 3_000
# How long to wait for those that do not say that they lead, while nobody does.
FIND_MS = 500


class Controllers:
    """``addrs`` are those of ``controllerAddr``; ``leader`` is one of them where possible, "" while it is unknown."""

    def __init__(self, client: RemotingClient, addrs: Sequence[str]) -> None:
        self._client = client
        self.addrs = tuple(addrs)
        self.leader = ""
        # It did not answer as a leader should: another one is preferred.
        self._failed = ""

    async def ask(self, what: Request[Any, Any, AH, AB], header: Any, body: Any = None) -> Answer[AH, AB]:
        """The leader's answer. Raises NoController, RemotingError or BrokerError; then the leader is searched anew."""
        leader = self.leader or await self._find()
        try:
            return await call(Remote(self._client, leader, TIMEOUT_MS), what, header, body)
        except RemotingError as error:
            if isinstance(error, RequestTimeout):  # the connection may be dead without an error
                self._client.close_connection(leader, "no answer in time")
            self.lost(leader)
            raise
        except BrokerError as error:
            if error.code == ResponseCode.CONTROLLER_NOT_LEADER:
                self.lost(leader)
            raise

    def lost(self, leader: str) -> None:
        """``leader`` does not answer, or not as the leader."""
        if self.leader == leader:
            self.leader, self._failed = "", leader

    async def _find(self) -> str:
        """Ask all who leads: the first that says that it does itself is taken, else one that others name."""
        named: list[str] = []
        leads: list[str] = []

        async def ask(addr: str) -> None:
            try:
                remote = Remote(self._client, addr, FIND_MS)
                found: GetMetaDataResponseHeader = (await call(remote, CONTROLLER_GET_METADATA_INFO)).header()
            except (RemotingError, BrokerError, ProtocolError):
                return
            if found.is_leader:
                leads.append(addr)
                if addr != self._failed:
                    nursery.cancel_scope.cancel()
            elif found.controller_leader_address:
                named.append(found.controller_leader_address)

        async with trio.open_nursery() as nursery:
            for addr in self.addrs:
                nursery.start_soon(ask, addr)
        found = sorted([*leads, *named], key=lambda addr: addr == self._failed)
        if not found:
            raise NoController(self.addrs)
        if found[0] != self._failed:
            logger.info("Controller %s leads", found[0])
        self.leader, self._failed = found[0], ""
        return self.leader
