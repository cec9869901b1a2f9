"""The facts about a cluster.

``error`` says why a server did not answer, or, if it ``refused``, what the server answered instead; the other members
are empty then.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.protocol.group_subscriptions import Wanted


@lazy_dataclass(frozen=True, slots=True)
class NameServerFacts:
    """One NameServer of ``-n``."""

    addr: str
    error: str | None = None
    refused: bool = False
    #: Broker name → broker id → address.
    brokers: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    #: Broker name → broker id → address of a second broker that registered there.
    contested: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    topics: frozenset[str] = frozenset()
    #: Whether only users that its conf file names may register brokers.
    is_guarded: bool = False
    #: Brokers that the NameServer knows to be away, and why.
    absent: Mapping[str, str] = field(default_factory=dict)


@lazy_dataclass(frozen=True, slots=True)
class PortFacts:
    """A port of a broker, other than its registered port; ``kind`` is fast, HA or DLedger."""

    kind: str
    addr: str
    error: str | None = None


@lazy_dataclass(frozen=True, slots=True)
class CertificateFacts:
    """The end date of a TLS broker's certificate; None, with the reason, when the certificate could not be read."""

    where: str
    not_after_ms: int | None
    error: str | None = None


@lazy_dataclass(frozen=True, slots=True)
class BrokerFacts:
    """One broker that a NameServer knows; ``info`` is what brokerStatus shows."""

    name: str
    broker_id: int
    addr: str
    error: str | None = None
    refused: bool = False
    info: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    #: This machine's time in the middle of the request for ``info``, and how long the request took.
    asked_ms: int = 0
    took_ms: int = 0
    ports: tuple[PortFacts, ...] = ()

    @property
    def where(self) -> str:
        """The broker's name in findings."""
        return f"{self.name}:{self.broker_id} {self.addr}"

    @property
    def group_size(self) -> int:
        """The number of members of the broker's DLedger group, by its conf; 0 without DLedger."""
        is_member = self.config.get("enableDLegerCommitLog") == "true"
        return len([each for each in self.config.get("dLegerPeers", "").split(";") if each.strip()]) if is_member else 0

    @property
    def elects_master(self) -> bool:
        """Whether the master of the broker's set is elected; brokerRole has no meaning then."""
        return self.has_controllers or self.group_size > 0

    @property
    def has_controllers(self) -> bool:
        """Whether Controllers choose the master of the broker's set."""
        return self.config.get("enableControllerMode") == "true"

    @property
    def has_access_control(self) -> bool:
        """Whether the broker checks the signatures of clients."""
        keys = ("aclEnable", "authenticationEnabled", "authorizationEnabled")
        return any(self.config.get(key) == "true" for key in keys)

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID

    def percent(self, key: str, default: int) -> int:
        """The option ``key``, a percentage."""
        text = self.config.get(key, "")
        return int(text) if text.isdecimal() else default


@lazy_dataclass(frozen=True, slots=True)
class ControllerFacts:
    """A Controller that brokers have in their options. ``leader``: the address of the leader; "" if there is none."""

    addr: str
    error: str | None = None
    is_leader: bool = False
    leader: str = ""


@lazy_dataclass(frozen=True, slots=True)
class ReplicaSetFacts:
    """A set whose master the Controllers choose: address of each broker → whether it is alive."""

    master: str
    in_sync: Mapping[str, bool] = field(default_factory=dict)
    others: Mapping[str, bool] = field(default_factory=dict)


@lazy_dataclass(frozen=True, slots=True)
class GroupFacts:
    """The messages of a topic that a group has not consumed; ``members``: the number of connected consumers."""

    group: str
    topic: str
    lag: int = 0
    delay_ms: int = 0
    members: int = 0


@lazy_dataclass(frozen=True, slots=True)
class OrderFacts:
    """The record of an ordered topic at one NameServer.

    ``lacks``: broker name → why the broker does not take the recorded queues. ``has_route``: the topic exists.
    ``is_in_route``: the topic's route has the record, so clients follow it (orderMessageEnable).
    """

    namesrv: str
    topic: str
    record: str
    has_route: bool = True
    is_in_route: bool = True
    lacks: Mapping[str, str] = field(default_factory=dict)


@lazy_dataclass(frozen=True, slots=True)
class Facts:
    """All facts about a cluster."""

    name_servers: tuple[NameServerFacts, ...] = ()
    brokers: tuple[BrokerFacts, ...] = ()
    groups: tuple[GroupFacts, ...] = ()
    certificates: tuple[CertificateFacts, ...] = ()
    now_ms: int = 0
    #: The number of groups that were not checked, as there are too many.
    groups_left_out: int = 0
    #: Dead letters by group.
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    #: Failed questions, except to whole servers: the question, and the reason.
    unanswered: tuple[tuple[str, str], ...] = ()
    #: A group that lags by more messages than this is warned about.
    max_lag: int = 10_000
    controllers: tuple[ControllerFacts, ...] = ()
    #: By broker name.
    replica_sets: Mapping[str, ReplicaSetFacts] = field(default_factory=dict)
    #: Group → the set of subscriptions → the ids of the clients that have this set.
    wanted: Mapping[str, Mapping[Wanted, Sequence[str]]] = field(default_factory=dict)
    orders: tuple[OrderFacts, ...] = ()

    @property
    def answering(self) -> list[BrokerFacts]:
        """The brokers that answered."""
        return [broker for broker in self.brokers if broker.error is None]

    @property
    def sets(self) -> dict[str, list[BrokerFacts]]:
        """The brokers of each set, by name."""
        found: dict[str, list[BrokerFacts]] = {}
        for broker in self.brokers:
            found.setdefault(broker.name, []).append(broker)
        return found


OK, INFO, WARN, FAIL = "OK", "INFO", "WARN", "FAIL"


@lazy_dataclass(frozen=True, slots=True)
class Finding:
    """``where`` is the server, group or topic; ``remedy`` is what to do, empty when there is nothing to do."""

    state: str
    where: str
    text: str
    remedy: str = ""


Check = Callable[[Facts], Iterable[Finding]]


def few(names: Iterable[str], most: int = 5) -> str:
    """The first names, and how many more there are."""
    every = sorted(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
