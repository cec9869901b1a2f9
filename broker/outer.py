"""What a broker asks of NameServers: 103, 104, 322; with acting masters 901 and 904, too.

The connection decides the wire: JSON with RocketMQ's own, CBOR with ours. A RemotingError means no answer, a
BrokerError one with an error code. Neighbours: registrar.py decides when.
"""

from broker.identity import Identity
from broker.replication.known_master import MasterAddress
from mqcommon.errors import BrokerError, ProtocolError, RequestRefused
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


class Namesrv:
    """One NameServer, as the broker ``identity`` talks to it."""

    def __init__(self, client: RemotingClient, addr: str, identity: Identity, timeout_ms: float) -> None:
        self._client = client
        self.addr = addr
        self._identity = identity
        self._timeout_ms = timeout_ms
        #: Where another broker registers with the same name and id, as the last answer to 103 said.
        self.contested_by = ""

    async def register(
        self, body: RegisterBrokerBody, enable_acting_master: bool = False, heartbeat_timeout_ms: int | None = None
    ) -> MasterAddress | None:
        """103: all topics of the broker. The answer tells a slave where its master is, if that is known there.

        A NameServer takes the topics of a slave, while its set has no master, only from one that says whether it may
        act as the master. It forgets a broker that was silent for ``heartbeat_timeout_ms``; None: for 120 s.
        """
        who = self._identity
        header = RegisterBrokerRequestHeader(
            who.broker_name, who.addr, who.cluster_name, who.ha_addr, who.broker_id,
            heartbeat_timeout_millis=heartbeat_timeout_ms, enable_acting_master=enable_acting_master, compressed=False,
        )  # fmt: skip
        answer = await self._ask(RequestCode.REGISTER_BROKER, header, body)
        master = RegisterBrokerResponseHeader.from_ext(answer.ext)
        self.contested_by = master.contested_by or ""
        if not master.master_addr or not master.ha_server_addr:
            return None
        return MasterAddress(master.master_addr, master.ha_server_addr)

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
        try:
            return bool(QueryDataVersionResponseHeader.from_ext(answer.ext).changed)
        except RequestRefused as error:
            raise ProtocolError(f"{self.addr} answered 322 without saying whether it changed: {error}") from None

    async def unregister(self) -> None:
        """104."""
        await self._ask(RequestCode.UNREGISTER_BROKER, self._broker_header())

    def _broker_header(self) -> BrokerRequestHeader:
        who = self._identity
        return BrokerRequestHeader(who.broker_name, who.addr, who.cluster_name, who.broker_id)

    async def _ask(
        self, code: int, header: Header, body: Body | None = None, timeout_ms: float | None = None
    ) -> Command:
        request = Command(code, header.to_ext())
        answer = await self._client.invoke(self.addr, request, timeout_ms or self._timeout_ms, body=body)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark, self.addr)
        return answer
