"""What a broker asks of NameServers: 103, 104, 322; with acting masters 901 and 904, too.

The connection decides the wire: JSON with RocketMQ's own, CBOR with ours. A RemotingError means no answer, a
BrokerError one with an error code. Neighbours: registrar.py decides when.
"""

from typing import NamedTuple

from broker.identity import Identity
from broker.options import BrokerOptions
from broker.replication.known_master import MasterAddress
from mqcommon.errors import BrokerError, ConnectionLost
from remoting.net.client import RemotingClient
from remoting.protocol.bodies import Body, decode_body
from remoting.protocol.bodies.cluster import MemberGroupAnswer
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.register import RegisterBrokerBody
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.header import Header
from remoting.protocol.headers.members import BrokerHeartbeatRequestHeader, GetBrokerMemberGroupRequestHeader
from remoting.protocol.headers.namesrv import (
    BrokerRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
)


class Part(NamedTuple):
    """Of a registration in parts; with ``base`` of what changed since that version."""

    number: int
    is_last: bool
    base: DataVersion | None


class Registered(NamedTuple):
    """What a NameServer says to a registration."""

    #: Of a slave's set, when that is known there.
    master: MasterAddress | None
    #: A part does not follow on what the NameServer has.
    whole_needed: bool


class Namesrv:
    """One NameServer, as the broker ``identity`` talks to it."""

    def __init__(
        self,
        client: RemotingClient,
        addr: str,
        identity: Identity,
        options: BrokerOptions,
        timeout_ms: float | None = None,
    ) -> None:
        """``timeout_ms``: of a request, else what the options say."""
        self._client = client
        self.addr = addr
        self._identity = identity
        self._options = options
        self._timeout_ms = options.register_broker_timeout_mills if timeout_ms is None else timeout_ms
        #: Where another broker registers with the same name and id, as the last answer to 103 said.
        self.contested_by = ""
        #: Whether it takes registrations in parts, as its last answer on this connection says.
        self.takes_parts = False

    async def register(self, body: RegisterBrokerBody, part: Part | None = None) -> Registered:
        """103: all topics of the broker, or a part of a registration. See `Registered`."""
        header = self._registration()
        if part is not None:
            # To one that takes no parts, this would be the whole set.
            if not self.takes_parts:
                raise ConnectionLost(self.addr, "between two parts of a registration")
            header.part, header.is_last_part = part.number, part.is_last
            if part.base is not None:
                header.base_state_version = part.base.state_version
                header.base_timestamp, header.base_counter = part.base.timestamp, part.base.counter
        # The first part displaces a rival, and so its answer alone names it.
        known_rival = self.contested_by if part is not None and part.number else ""
        registered = self._registered(await self._ask(RequestCode.REGISTER_BROKER, header, body))
        self.contested_by = self.contested_by or known_rival
        return registered

    async def register_encoded(self, body: bytes, *, is_compressed: bool) -> Registered:
        """103: all topics, in JSON or compressed, to a NameServer of RocketMQ's."""
        header = self._registration()
        header.compressed = is_compressed
        return self._registered(await self._ask(RequestCode.REGISTER_BROKER, header, body))

    def _registration(self) -> RegisterBrokerRequestHeader:
        """A NameServer takes the topics of a slave without a master only when it says whether it may act as one."""
        who, options = self._identity, self._options
        acting = options.enable_slave_acting_master
        return RegisterBrokerRequestHeader(
            who.broker_name, who.addr, who.cluster_name, who.ha_addr, who.broker_id,
            heartbeat_timeout_millis=options.broker_not_active_timeout_millis if acting else None,
            enable_acting_master=acting, compressed=False,
        )  # fmt: skip

    def _registered(self, answer: Command) -> Registered:
        told = RegisterBrokerResponseHeader.from_answer(answer.ext)
        self.takes_parts = bool(told.takes_parts)
        self.contested_by = told.contested_by or ""
        master = None
        if told.master_addr and told.ha_server_addr:
            master = MasterAddress(told.master_addr, told.ha_server_addr)
        return Registered(master, bool(told.whole_needed))

    async def heartbeat(self, timeout_ms: float) -> None:
        """904: this broker lives. A BrokerError says that it is not registered there."""
        who = self._identity
        header = BrokerHeartbeatRequestHeader(who.cluster_name, who.addr, who.broker_name, who.broker_id)
        await self._ask(RequestCode.BROKER_HEARTBEAT, header, timeout_ms=timeout_ms)

    async def members(self, timeout_ms: float) -> dict[int, str]:
        """901: who of this broker's set lives."""
        header = GetBrokerMemberGroupRequestHeader(self._identity.cluster_name, self._identity.broker_name)
        answer = await self._ask(RequestCode.GET_BROKER_MEMBER_GROUP, header, timeout_ms=timeout_ms)
        group = decode_body(MemberGroupAnswer, answer.body, answer.codec) if answer.body else MemberGroupAnswer()
        return group.broker_member_group.broker_addrs

    async def needs_registration(self, version: DataVersion) -> bool:
        """322: whether it knows another version of the broker's topics, or none. It counts as a heartbeat."""
        answer = await self._ask(RequestCode.QUERY_DATA_VERSION, self._broker_header(), version)
        told = QueryDataVersionResponseHeader.from_answer(answer.ext)
        self.takes_parts = bool(told.takes_parts)
        return bool(told.changed)

    async def unregister(self) -> None:
        """104."""
        await self._ask(RequestCode.UNREGISTER_BROKER, self._broker_header())

    def _broker_header(self) -> BrokerRequestHeader:
        who = self._identity
        return BrokerRequestHeader(who.broker_name, who.addr, who.cluster_name, who.broker_id)

    async def _ask(
        self, code: int, header: Header, body: Body | bytes | None = None, timeout_ms: float | None = None
    ) -> Command:
        request = Command(code, header.to_ext())
        answer = await self._client.invoke(self.addr, request, timeout_ms or self._timeout_ms, body=body)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, self.addr)
        return answer
