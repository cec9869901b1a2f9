"""Requests between the members of a set: the lowest member changed (905), the master's address (906).

Neighbours: registration/heartbeats.py (asks NameServers whether 905 is true), known_master.py.
"""

from collections.abc import Callable

from broker.identity import Identity
from broker.part import Part
from broker.replication.known_master import KnownMaster, MasterAddress
from broker.replication.role import RoleMachine
from broker.store.store import MessageStore
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.protocol.command import Command
from remoting.protocol.requests.registrations import NOTIFY_MIN_BROKER_ID_CHANGE
from remoting.protocol.requests.replication import EXCHANGE_BROKER_HA_INFO, ExchangeHAInfoHeader


class MemberHandlers(Part):
    """The handlers of a broker with enableSlaveActingMaster."""

    def __init__(
        self,
        role: RoleMachine,
        identity: Identity,
        store: MessageStore,
        master: KnownMaster,
        ask_soon: Callable[[], None],
    ) -> None:
        self._role = role
        self._identity = identity
        self._store = store
        self._master = master
        self._ask_soon = ask_soon

    def handlers(self) -> dict[int, Handler]:
        return {
            NOTIFY_MIN_BROKER_ID_CHANGE.code: self.min_broker_changed,
            EXCHANGE_BROKER_HA_INFO.code: self.exchange_ha_info,
        }

    def min_broker_changed(self, channel: Channel, request: Command) -> Command:
        """905: anybody may send it, so all NameServers are asked."""
        self._ask_soon()
        return request.respond()

    def exchange_ha_info(self, channel: Channel, request: Command) -> Command:
        """906: a master that is about to register sends its address, or a slave asks for it."""
        sender = EXCHANGE_BROKER_HA_INFO.header(request)
        answer = ExchangeHAInfoHeader()
        if self._role.now.follows:
            if sender.master_address and sender.master_ha_address:
                self._master.returning(MasterAddress(sender.master_address, sender.master_ha_address))
        elif self._role.now.is_master:
            answer = ExchangeHAInfoHeader(self._identity.ha_addr, self._store.log.flushed, self._identity.addr)
        return EXCHANGE_BROKER_HA_INFO.answer(request, answer)
