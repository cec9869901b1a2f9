"""Registrations of brokers, in one part or in several, and the entry of a live broker. Pure.

RocketMQ's registration has all topics in one frame: some 40,000 topics fill it, and a change of one topic sends all of
them again. So Skylark's brokers send a large set, or the changes since a version, in parts: a part has a number and
some of the topics. Invariant: until the last part has arrived, a NameServer holds no version of the broker's topics. So
a broker that asks (322) is never told that a half-sent set is up to date. Names and numbers are accepted if a broker
accepts them, too. A registration with a bad broker name or address is refused. A bad topic is left out and the others
are kept: a client refuses the whole route when it cannot use a part.
Neighbours: routes.py keeps the broker; registration_handlers.py reads the request; broker/registration/registration.py
sends.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import islice
from sys import intern
from typing import Any, Generic, NamedTuple, TypeVar

from skylark.mqcommon.addresses import AdvertisedAddress, parse_advertised, split_address
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MAX_PERM, MAX_QUEUE_NUMS, check_topic, system_topics
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.dialect import Dialect
from skylark.remoting.protocol.requests.registrations import MAX_KNOWN_BROKERS
from skylark.remoting.protocol.requests.routes import QueueData, RegisterBrokerRequestHeader
from skylark.remoting.protocol.requests.topics import TopicQueueMappingInfo


@lazy_dataclass(frozen=True, slots=True)
class RegistrationPart:
    """One part. With ``base``, the parts have the changes since that version; without, they make up the whole set."""

    number: int
    is_last: bool
    base: DataVersion | None = None
    #: Topics that were in ``base`` and have been deleted since.
    removed: tuple[str, ...] = ()


@lazy_dataclass(slots=True)
class Arrived:
    """The parts that have arrived of a registration."""

    version: DataVersion
    #: Whether the topics replace the known ones; else only missing ones are added.
    is_changed: bool
    #: All topic names so far; None when only changes are sent.
    names: set[str] | None
    next_number: int = 0

    def add_part(self, part: RegistrationPart, topics: Iterable[str]) -> None:
        """Record that ``part`` has arrived."""
        self.next_number = part.number + 1
        if self.names is not None:
            self.names.update(topics)

    def is_followed_by(self, part: RegistrationPart, version: DataVersion) -> bool:
        """Whether ``part``, of the set with ``version``, is the next one."""
        return self.version == version and self.next_number == part.number


def incomplete(version: DataVersion) -> DataVersion:
    """A version that no broker has, for a set that has not arrived in full."""
    return DataVersion(version.state_version, 0, 0)


def arrived_with(
    part: RegistrationPart | None,
    version: DataVersion,
    topics: Iterable[str],
    known_version: DataVersion | None,
    known: Arrived | None,
) -> Arrived:
    """The parts that have arrived, with this one and its ``topics``; ``part`` None: RocketMQ's all in one."""
    # A first part begins anew, whatever came before. If its version is unchanged, only missing topics are added
    # (`is_changed`), so that a permission which was wiped here stays wiped.
    if part is None or part.number == 0 or known is None:
        is_delta = part is not None and part.base is not None
        known = Arrived(version, is_delta or known_version != version, None if is_delta else set())
    known.add_part(part or RegistrationPart(0, True), topics)
    return known


DEFAULT_HEARTBEAT_TIMEOUT_MS = 120_000

C = TypeVar("C")


class LogicalQueues(NamedTuple):
    """A broker's part in a static topic: which of the logical queues it leads, as (logical id, own id), sorted."""

    scope: str
    total_queues: int
    epoch: int
    is_dirty: bool
    ids: tuple[tuple[int, int], ...]

    def data(self, topic: str, broker_name: str) -> TopicQueueMappingInfo:
        """The part as routes show it."""
        return TopicQueueMappingInfo(
            topic, self.scope, self.total_queues, broker_name, self.epoch, self.is_dirty, dict(self.ids)
        )


class Queues(NamedTuple):
    """A broker's queues of one topic; ``created_ms`` is its creation stamp. Topics without one share objects."""

    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0
    logical: LogicalQueues | None = None
    created_ms: int | None = None

    def data(self, broker_name: str) -> QueueData:
        """The queues as routes show them."""
        return QueueData(broker_name, *self[:4], self.created_ms)


@lazy_dataclass(frozen=True, slots=True)
class Registration:
    """A registration of a broker with its topics, or a part of them."""

    cluster: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str
    data_version: DataVersion
    topics: Mapping[str, Queues]
    filter_servers: tuple[str, ...] = ()
    heartbeat_timeout_ms: int = DEFAULT_HEARTBEAT_TIMEOUT_MS
    # None: the broker is older than 5.0 and does not know the field; its slaves never register topics
    enable_acting_master: bool | None = None
    # None: all topics in one request, or one topic that RocketMQ's broker adds
    part: RegistrationPart | None = None
    # the addresses for clients of some networks, the narrowest network first
    advertised: tuple[AdvertisedAddress, ...] = ()
    # whether the broker is a Skylark
    answers_probes: bool = False
    # the other brokers of the cluster that the broker knows
    known_brokers: tuple[str, ...] = ()
    # whether it leaves for good when it leaves
    is_drained: bool = False


class Unchanged(NamedTuple):
    """The 322 that a broker may repeat at each heartbeat, by fields and body, and the answer to it."""

    ext: Mapping[str, Any]
    question: bytes
    dialect: Dialect
    answer_ext: Mapping[str, Any]
    answer: bytes


@lazy_dataclass(slots=True)
class LiveBroker(Generic[C]):
    """A broker that was last heard less than ``heartbeat_timeout_ms`` ago."""

    cluster: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str
    data_version: DataVersion
    filter_servers: tuple[str, ...]
    heartbeat_timeout_ms: int
    last_heard_ms: int
    connection: C
    # whether the broker answers any request on its connection
    answers_probes: bool = False
    # the parts of a registration whose last part has not arrived
    arrived: Arrived | None = None
    # whether its topics are in the table; topics of a slave whose master is alive are not
    provides_topics: bool = False
    # the last 322 that named the version held here, and the answer to it
    unchanged: Unchanged | None = None
    # whether it leaves for good when it leaves
    is_drained: bool = False
    # topics that were deleted on this NameServer only; the broker may still have them
    deleted_here: dict[str, None] = field(default_factory=dict)


def live_broker(new: Registration, connection: C, now_ms: int) -> LiveBroker[C]:
    """The entry of a broker that has just registered."""
    return LiveBroker(
        cluster=new.cluster,
        broker_name=new.broker_name,
        broker_id=new.broker_id,
        broker_addr=new.broker_addr,
        ha_server_addr=new.ha_server_addr,
        data_version=new.data_version,
        filter_servers=new.filter_servers,
        heartbeat_timeout_ms=new.heartbeat_timeout_ms,
        last_heard_ms=now_ms,
        connection=connection,
        answers_probes=new.answers_probes,
        is_drained=new.is_drained,
    )


MAX_NAME_CHARS = 255
MAX_FILTER_SERVERS = 64


def check_broker(header: RegisterBrokerRequestHeader) -> None:
    """RequestRefused for a broker whose name, address or id clients could not use."""
    for name, value in (
        ("brokerName", header.broker_name),
        ("brokerAddr", header.broker_addr),
        ("clusterName", header.cluster_name),
    ):
        if not value.strip():
            raise _refused(f"{name} is blank")
        check_text(name, value)
    check_text("haServerAddr", header.ha_server_addr)
    if header.broker_id < 0:
        raise _refused(f"brokerId {header.broker_id} is negative")


def known_brokers(names: Iterable[str]) -> tuple[str, ...]:
    """The names of other brokers that a broker registers, without impossible names."""
    found = dict.fromkeys(name for name in names if name.strip() and len(name) <= MAX_NAME_CHARS and name.isprintable())
    return tuple(islice(found, MAX_KNOWN_BROKERS))


def advertised(header: RegisterBrokerRequestHeader) -> tuple[AdvertisedAddress, ...]:
    """The addresses that the broker advertises; RequestRefused when they cannot be parsed."""
    if not header.advertised_addresses:
        return ()
    try:
        found = parse_advertised(header.advertised_addresses, split_address(header.broker_addr)[1])
    except ValueError as error:
        raise _refused(f"advertisedAddresses: {error}") from None
    for each in found:
        check_text("an advertised address", each.addr)
    return found


def check_text(what: str, value: str) -> None:
    """RequestRefused for a name or an address that is too long, or would not stay on one line; ``what`` it is."""
    if len(value) > MAX_NAME_CHARS:
        raise _refused(f"{what} has {len(value)} characters, at most {MAX_NAME_CHARS} are taken")
    if not value.isprintable():
        raise _refused(f"{what} has characters that cannot be printed")


def topic_fault(topic: str, queues: Queues) -> str | None:
    """Why clients could not use the topic; None when they can."""
    try:
        check_topic(topic)
    except RequestRefused as error:
        return error.remark
    return queues_fault(queues)


def queues_fault(queues: Queues) -> str | None:
    """Why these queues could not be used; None when they can."""
    for number in (queues.read_queue_nums, queues.write_queue_nums):
        if not 0 <= number <= MAX_QUEUE_NUMS:
            return f"a topic has 0 to {MAX_QUEUE_NUMS} queues, not {number}"
    if not 0 <= queues.perm <= MAX_PERM:
        return f"perm is 0 to {MAX_PERM}, not {queues.perm}"
    return None


def logical_queues(info: TopicQueueMappingInfo) -> LogicalQueues | None:
    """The part in a static topic that a broker registers; None when clients could not use it."""
    numbers = (info.total_queues, *info.curr_id_map, *info.curr_id_map.values())
    if not all(0 <= number <= MAX_QUEUE_NUMS for number in numbers):
        return None
    if len(info.scope) > MAX_NAME_CHARS or not info.scope.isprintable():
        return None
    return LogicalQueues(
        intern(info.scope), info.total_queues, info.epoch, info.dirty, tuple(sorted(info.curr_id_map.items()))
    )


def own_topics(cluster: str, broker_name: str) -> frozenset[str]:
    """The topics that are named after a broker and its cluster; these names may have any characters."""
    return frozenset(topic.name for topic in system_topics(cluster, broker_name, auto_create_queue_nums=None))


def _refused(reason: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, reason)
