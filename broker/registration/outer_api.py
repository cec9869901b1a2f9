"""Requests of a broker to NameServers: 103, 104, 322; with acting masters also 901 and 904.

The connection decides the encoding: JSON with RocketMQ's NameServers, CBOR with Skylark's. A RemotingError means no
answer, a BrokerError an answer with an error code. Neighbour: registrar.py decides when to send them.
"""

from typing import NamedTuple

from skylark.broker.identity import Identity
from skylark.broker.options import BrokerOptions
from skylark.broker.replication.known_master import MasterAddress
from skylark.mqcommon.errors import ConnectionLost
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.body import DataVersion, KVTable
from skylark.remoting.protocol.request import Answer
from skylark.remoting.protocol.requests.registrations import (
    BROKER_HEARTBEAT,
    GET_BROKER_MEMBER_GROUP,
    QUERY_DATA_VERSION,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
    BrokerHeartbeatRequestHeader,
    GetBrokerMemberGroupRequestHeader,
    RegisterBrokerBody,
    names_in,
)
from skylark.remoting.protocol.requests.routes import (
    BrokerRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
)


class RegistrationPart(NamedTuple):
    """One part of a registration. With ``base`` it has only the changes since that version."""

    number: int
    is_last: bool
    base: DataVersion | None


class RegisterAnswer(NamedTuple):
    """A NameServer's answer to a registration."""

    #: For a slave: the master of its set, if the NameServer knows it.
    master: MasterAddress | None
    #: The NameServer lacks the registration to which the part belongs: the whole set must be sent.
    whole_needed: bool
    #: Other brokers that the NameServer knows, if they differ from the brokers that this one knows.
    told: "ToldBrokers | None" = None


class ToldBrokers(NamedTuple):
    """Names of brokers as a NameServer reports them: ``known`` to be in the cluster, and ``gone`` for good."""

    known: list[str]
    gone: list[str]


class Question(NamedTuple):
    """A NameServer's answer to 322: whether the broker must register; ``told`` as in `RegisterAnswer`."""

    must_register: bool
    told: ToldBrokers | None


class OuterApi:
    """Sends requests of the broker ``identity`` to one NameServer."""

    def __init__(
        self,
        client: RemotingClient,
        addr: str,
        identity: Identity,
        options: BrokerOptions,
        timeout_ms: float | None = None,
    ) -> None:
        """``timeout_ms``: the time limit of a request; by default the one in the options."""
        self._client = client
        self.addr = addr
        self._identity = identity
        self._options = options
        self._timeout_ms = options.register_broker_timeout_mills if timeout_ms is None else timeout_ms
        #: The address of another broker with the same name and id, by the last answer to 103.
        self.contested_by = ""
        #: Whether the NameServer takes registrations in parts, by its last answer on this connection.
        self.takes_parts = False

    async def register(self, body: RegisterBrokerBody, part: RegistrationPart | None = None) -> RegisterAnswer:
        """103: all topics of the broker, or a part of a registration. See `RegisterAnswer`."""
        header = self._registration()
        if part is not None:
            # A NameServer that does not know parts would take this part for the whole set.
            if not self.takes_parts:
                raise ConnectionLost(self.addr, "between two parts of a registration")
            header.part, header.is_last_part = part.number, part.is_last
            if part.base is not None:
                header.base_state_version = part.base.state_version
                header.base_timestamp, header.base_counter = part.base.timestamp, part.base.counter
        # The first part displaces a rival, so only the answer to the first part names the rival.
        known_rival = self.contested_by if part is not None and part.number else ""
        registered = self._registered(await call(self._at(), REGISTER_BROKER, header, body))
        self.contested_by = self.contested_by or known_rival
        return registered

    async def register_encoded(self, body: bytes, *, is_compressed: bool) -> RegisterAnswer:
        """103: all topics, in JSON or compressed, to a RocketMQ NameServer."""
        # ``body`` was encoded in a thread: encoding a large set would block the event loop.
        header = self._registration()
        header.compressed = is_compressed
        return self._registered(await call(self._at(), REGISTER_BROKER, header, body))

    def _registration(self) -> RegisterBrokerRequestHeader:
        # A NameServer takes the topics of a slave without a master only if ``enable_acting_master`` is given.
        who, options = self._identity, self._options
        acting = options.enable_slave_acting_master
        return RegisterBrokerRequestHeader(
            who.broker_name,
            who.addr,
            who.cluster_name,
            who.ha_addr,
            who.broker_id,
            heartbeat_timeout_millis=options.broker_not_active_timeout_millis if acting else None,
            enable_acting_master=acting,
            compressed=False,
            advertised_addresses=who.advertised or None,
        )

    def _registered(self, answer: Answer[RegisterBrokerResponseHeader, KVTable]) -> RegisterAnswer:
        response = answer.header()
        self.takes_parts = bool(response.takes_parts)
        self.contested_by = response.contested_by or ""
        master = None
        if response.master_addr and response.ha_server_addr:
            master = MasterAddress(response.master_addr, response.ha_server_addr)
        return RegisterAnswer(master, bool(response.whole_needed), _told_brokers(response))

    async def heartbeat(self, timeout_ms: float) -> None:
        """904: this broker is alive. A BrokerError means that it is not registered there."""
        who = self._identity
        header = BrokerHeartbeatRequestHeader(who.cluster_name, who.addr, who.broker_name, who.broker_id)
        await call(self._at(timeout_ms), BROKER_HEARTBEAT, header)

    async def members(self, timeout_ms: float) -> dict[int, str]:
        """901: the living members of this broker's set, by id."""
        header = GetBrokerMemberGroupRequestHeader(self._identity.cluster_name, self._identity.broker_name)
        answer = await call(self._at(timeout_ms), GET_BROKER_MEMBER_GROUP, header)
        return answer.body().broker_member_group.broker_addrs if answer.command.body else {}

    async def ask(self, version: DataVersion, known_crc: int | None = None) -> Question:
        """322: whether the NameServer lacks this version of the broker's topics. The request counts as a heartbeat.

        ``known_crc``: the `names_crc` of the brokers that this one knows, itself included.
        """
        header = self._broker_header()
        header.known_crc = known_crc
        response = (await call(self._at(), QUERY_DATA_VERSION, header, version)).header()
        self.takes_parts = bool(response.takes_parts)
        return Question(response.changed, _told_brokers(response))

    async def unregister(self) -> None:
        """104: take this broker out of the NameServer's routes."""
        await call(self._at(), UNREGISTER_BROKER, self._broker_header())

    def _broker_header(self) -> BrokerRequestHeader:
        who = self._identity
        return BrokerRequestHeader(who.broker_name, who.addr, who.cluster_name, who.broker_id)

    def _at(self, timeout_ms: float | None = None) -> Remote:
        return Remote(self._client, self.addr, timeout_ms or self._timeout_ms)


def _told_brokers(response: RegisterBrokerResponseHeader | QueryDataVersionResponseHeader) -> ToldBrokers | None:
    if response.known_brokers is None:
        return None
    return ToldBrokers(names_in(response.known_brokers), names_in(response.gone_brokers))
