"""The route table: which brokers are alive, and which queues make up a topic. Pure.

Brokers fill it, clients read it, none of it is on disk. Invariants, whatever the order of events:
  - each member of a broker set has exactly one live entry, and one address is one broker;
  - a topic lists only queues of broker sets that have a member;
  - results are sorted, here or by handlers.py, so NameServers with the same registrations give the same answers.
A connection is only a token here (compared by identity): ``close`` removes the brokers that were last heard on it, so
a broker that came back on a new connection stays when its old connection ends.
The lowest member of a set (RocketMQ's min broker) acts as the master while the master is away.
Neighbours: handlers.py translates requests into calls; namesrv.py calls ``expire`` and ``close``;
min_broker_notices.py tells slaves of a new lowest member; topic_queues.py has the topics of each set; route_answers.py
keeps encoded answers, and each change of a route here must reach it.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from enum import Enum
from itertools import islice
from typing import Generic, TypeVar

from skylark.mqcommon.addresses import AdvertisedAddress
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import MASTER_ID, MEMBER_GROUP_PREFIX, PERM_READ, PERM_WRITE
from skylark.namesrv.advertised import Advertised
from skylark.namesrv.known_brokers import LOST, STOPPED, KnownBrokers
from skylark.namesrv.registration import (
    DEFAULT_HEARTBEAT_TIMEOUT_MS,
    Arrived,
    LiveBroker,
    Queues,
    Registration,
    RegistrationPart,
    arrived_with,
    incomplete,
    live_broker,
)
from skylark.namesrv.route_answers import RouteAnswers
from skylark.namesrv.topic_queues import TopicQueues
from skylark.namesrv.watches import RouteChanges
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData

#: Id and address.
MinBroker = tuple[int, str]


@lazy_dataclass(frozen=True, slots=True)
class MinBrokerChange:
    """A set has a new lowest member. ``slaves``: the addresses to tell."""

    broker_name: str
    min_broker_id: int
    min_broker_addr: str
    #: The address of the former lowest member, when that has left.
    offline_broker_addr: str | None
    #: The HA address of the master, when the new lowest member is a master.
    ha_broker_addr: str | None
    slaves: tuple[str, ...]


def min_broker(addrs: Mapping[int, str]) -> MinBroker:
    """The lowest member of a set that is not empty."""
    lowest = min(addrs)
    return lowest, addrs[lowest]


def change_of(name: str, before: MinBroker, addrs: Mapping[int, str], ha_addr: str) -> MinBrokerChange | None:
    """The change to tell slaves of, when ``before`` was the lowest member and ``addrs`` are the members now, or None.

    ``ha_addr`` is the HA address of the present lowest member.
    """
    now = min_broker(addrs)
    if now == before:
        return None
    slaves = tuple(addr for broker_id, addr in sorted(addrs.items()) if broker_id != MASTER_ID)
    gone = before[1] if before[1] not in addrs.values() else None
    return MinBrokerChange(name, *now, gone, ha_addr if now[0] == MASTER_ID else None, slaves)


__all__ = ["DEFAULT_HEARTBEAT_TIMEOUT_MS", "LiveBroker", "Outcome", "Registered", "Registration", "RouteTable"]

C = TypeVar("C")

# How many topics get another permission in one step: some milliseconds.
SLICE = 5_000
CONTEST_MS = 120_000
MAX_PLACES = 1_000


class Outcome(Enum):
    """Whether a registration was applied, and why not."""

    REGISTERED = "registered"
    # the id is held at another address by a broker whose stateVersion is newer
    STALE = "stale"
    # a single topic adds to a registration that this NameServer has not seen
    INCREMENT_BEFORE_FULL = "increment before full"
    # a part, or a set of changes, that does not follow on what this NameServer has
    WHOLE_NEEDED = "whole needed"


@lazy_dataclass(frozen=True, slots=True)
class Registered(Generic[C]):
    """The outcome of a registration, and what its answer and the log need."""

    outcome: Outcome
    # the broker was not known at this address as this member of its set
    is_new: bool = False
    # the broker that held the id at another address until now
    displaced: LiveBroker[C] | None = None
    # the address of another broker that claims the same name and id
    rival_addr: str | None = None
    # for a slave: the addresses of its master
    master_addr: str | None = None
    ha_server_addr: str | None = None


@lazy_dataclass(slots=True)
class _BrokerSet:
    """The brokers of one name: a master (id 0) and its slaves."""

    cluster: str
    enable_acting_master: bool
    addrs: dict[int, str]
    # the lowest member that `min_broker_changes` reported last; None: none yet
    reported: MinBroker | None = None


@lazy_dataclass(frozen=True, slots=True)
class _Displaced(Generic[C]):
    """A broker whose place another address took, and its registration: it comes back when the other broker leaves.

    Otherwise its clients would have no route until its next heartbeat, after somebody has started a second broker of
    its name by mistake and stopped it again.
    """

    live: LiveBroker[C]
    enable_acting_master: bool
    topics: Mapping[str, Queues]
    advertised: tuple[AdvertisedAddress, ...]


class RouteTable(Generic[C]):
    """Live brokers, their sets, and the queues of every topic."""

    def __init__(self) -> None:
        self._live: dict[str, LiveBroker[C]] = {}
        self._sets: dict[str, _BrokerSet] = {}
        #: Encoded answers to route queries, and the changes of routes that clients may wait for.
        self.answers = RouteAnswers()
        self.changes = RouteChanges()
        self._queues = TopicQueues(self._route_changed)
        # names of the sets whose members changed since the last `min_broker_changes`; an ordered set
        self._changed: dict[str, None] = {}
        self.rivals = Rivals()
        #: All brokers by name, present or away.
        self.known = KnownBrokers()
        # By name and id.
        self._displaced: dict[tuple[str, int], _Displaced[C]] = {}
        #: The addresses that clients of some networks are given instead of the registered ones.
        self.advertised = Advertised()

    @property
    def broker_count(self) -> int:
        """Brokers that are alive."""
        return len(self._live)

    @property
    def topic_count(self) -> int:
        """Topics of all sets, each once."""
        return self._queues.topic_count

    # --- what brokers do

    def register(
        self, new: Registration, connection: C, now_ms: int, *, delete_absent_topics: bool = False
    ) -> Registered[C]:
        """Apply a broker's registration; with ``delete_absent_topics`` a full registration also removes absent topics.

        One name and id is held by one address. When another address holds it, the newer stateVersion (a controller's
        epoch) wins; of equal versions the last to register wins, and the other is recorded as its rival. A broker that
        was known under another name or id loses that entry first. Topics are taken from the master, or from the lowest
        slave while there is no master.
        """
        holder = self._member(new.broker_name, new.broker_id)
        known = self._live.get(new.broker_addr)
        self._forget_displaced(lambda live: live.broker_addr == new.broker_addr)
        # A master of an older epoch, which does not know yet that another was elected. It neither gets this place nor
        # keeps its old place.
        if holder is not None and holder is not known and _older_state(new.data_version, holder.data_version):
            if known is not None:
                self._remove(known)
            self.rivals.add(new.broker_name, new.broker_id, new.broker_addr, now_ms)
            return Registered(Outcome.STALE, rival_addr=holder.broker_addr)
        if new.part is None and holder is None and len(new.topics) == 1:
            return Registered(Outcome.INCREMENT_BEFORE_FULL)
        # Nothing is changed for a part that does not follow: the broker sends the whole set next.
        if new.part is not None and not self._follows(new, new.part, known, connection):
            return Registered(Outcome.WHOLE_NEEDED)

        # From here on the registration is applied. All of it happens in one turn, so readers see the table before it or
        # after it: first the entries that the broker and the former holder lose, then the new entry, then the topics.
        displaced = reported = rival_addr = None
        topics: Mapping[str, Queues] = {}
        if known is not None and known is not holder:
            if known.broker_name == new.broker_name:
                # The broker may be the last member: its set is removed with it and made again below. The topics stay:
                # parts may bring them one after the other, and a client must not take a topic for a new one meanwhile.
                reported = self._sets[known.broker_name].reported
                topics = dict(self._queues.of(known.broker_name))
            self._remove(known, is_renamed=known.broker_name != new.broker_name)
            if not self._queues.of(new.broker_name):
                self._queues.put(new.broker_name, topics)
            known = None
        if holder is not None and holder is not known:
            displaced = holder
            self._displaced.pop((new.broker_name, new.broker_id), None)
            brokers = self._sets[new.broker_name]
            former = _Displaced(
                holder,
                brokers.enable_acting_master,
                dict(self._queues.of(new.broker_name)),
                self.advertised.drop(holder.broker_addr),
            )
            del self._live[holder.broker_addr]
            if not _older_state(holder.data_version, new.data_version):  # else a controller elected the new one
                rival_addr = holder.broker_addr
                self.rivals.add(new.broker_name, new.broker_id, rival_addr, now_ms)
                # On the same connection the holder is the same broker, at another address.
                if holder.connection is not connection and len(self._displaced) < MAX_PLACES:
                    self._displaced[new.broker_name, new.broker_id] = former
        # Before the entry is replaced, which has the parts that came before this one.
        arrived = arrived_with(
            new.part,
            new.data_version,
            new.topics,
            None if known is None else known.data_version,
            None if known is None else known.arrived,
        )
        live = self._live[new.broker_addr] = live_broker(new, connection, now_ms)
        # Until its last part has come, the broker has a version that it never sends: 322 tells it to go on.
        if new.part is not None and not new.part.is_last:
            live.arrived, live.data_version = arrived, incomplete(new.data_version)
        brokers = self._join(new, known)
        brokers.reported = brokers.reported or reported
        # a slave registers topics for its set only while it has the lowest id, that is, without a master
        is_prime_slave = (
            new.broker_id != MASTER_ID and new.enable_acting_master is not None and new.broker_id == min(brokers.addrs)
        )
        if new.broker_id == MASTER_ID or is_prime_slave:
            live.provides_topics = True
            perm_mask = ~PERM_WRITE if is_prime_slave and brokers.enable_acting_master else ~0
            self._put_topics(new, arrived.is_changed, perm_mask)
            self._drop_topics(new, arrived, delete_absent_topics)
        self._add_known(new, is_whole=live.provides_topics and (new.part is None or new.part.is_last))
        if self.advertised.put(new.broker_addr, new.advertised):
            self._queues.touch(new.broker_name)
        master = self._member(new.broker_name, MASTER_ID) if new.broker_id != MASTER_ID else None
        return Registered(
            Outcome.REGISTERED,
            is_new=known is None,
            displaced=displaced,
            rival_addr=rival_addr,
            master_addr=master.broker_addr if master else None,
            ha_server_addr=master.ha_server_addr if master else None,
        )

    def unregister(self, cluster: str, broker_name: str, broker_addr: str) -> bool:
        """Remove a broker that leaves; False when no broker of that name is at that address."""
        self.rivals.remove(broker_addr)
        self._forget_displaced(lambda live: live.broker_addr == broker_addr)
        live = self._find(cluster, broker_addr)
        if live is None or live.broker_name != broker_name:
            return False
        self._leave(live, reason=STOPPED)
        return True

    def touch(self, cluster: str, broker_addr: str, connection: C, now_ms: int) -> LiveBroker[C] | None:
        """Record a heartbeat on ``connection``; the broker's entry, or None when it is unknown."""
        live = self._find(cluster, broker_addr)
        if live is None:
            return None
        live.last_heard_ms = now_ms
        live.connection = connection
        return live

    def at(self, broker_addr: str) -> LiveBroker[C] | None:
        """The entry of the broker at an address."""
        return self._live.get(broker_addr)

    def close(self, connection: C) -> list[LiveBroker[C]]:
        """A connection ended: remove the brokers last heard on it."""
        self._forget_displaced(lambda live: live.connection is connection)
        return self._remove_where(lambda live: live.connection is connection)

    def expire(self, now_ms: int) -> list[LiveBroker[C]]:
        """Remove the brokers that were silent for longer than their heartbeat timeout."""

        def is_silent(live: LiveBroker[C]) -> bool:
            return now_ms - live.last_heard_ms > live.heartbeat_timeout_ms

        self._forget_displaced(is_silent)
        return self._remove_where(is_silent)

    def min_broker_changes(self) -> list[MinBrokerChange]:
        """The sets with acting masters whose lowest member has changed since the last call."""
        changed, self._changed = self._changed, {}
        found = []
        for name in changed:
            brokers = self._sets.get(name)
            if brokers is None:
                continue
            # A set that is new here has no former lowest member, so there is no change to tell.
            before, brokers.reported = brokers.reported, min_broker(brokers.addrs)
            if before is not None and brokers.enable_acting_master:
                found.append(change_of(name, before, brokers.addrs, self._live[brokers.reported[1]].ha_server_addr))
        return [change for change in found if change is not None]

    # --- what administrators do

    def wipe_write_perm(self, broker_name: str) -> Generator[None, None, int]:
        """Make all topics of a broker read-only here, and return their number. Yields after each SLICE of topics."""
        return self._map_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> Generator[None, None, int]:
        """Make all topics of a broker readable and writable here, as `wipe_write_perm`."""
        return self._map_perm(broker_name, lambda perm: PERM_READ | PERM_WRITE)

    def put_topic(self, topic: str, queues: Iterable[QueueData]) -> bool:
        """Add queues to a topic. Does nothing and returns False when one names an unknown broker."""
        queues = list(queues)
        if not queues or any(queue.broker_name not in self._sets for queue in queues):
            return False
        for queue in queues:
            one = Queues(
                queue.read_queue_nums,
                queue.write_queue_nums,
                queue.perm,
                queue.topic_sys_flag,
                created_ms=queue.topic_created_ms,
            )
            self._queues.put(queue.broker_name, {topic: one})
        return True

    def forget_broker(self, broker_name: str) -> None:
        """Forget an absent broker that is gone for good. RequestRefused when it is present, or not known."""
        if broker_name in self._sets:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"broker {broker_name} is registered: stop it first, after mqadmin drain if its messages are needed",
            )
        if not self.known.forget(broker_name):
            known = ", ".join(one.broker_name for one in self.known.absent()) or "none"
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"broker {broker_name} is not known; brokers that are away: {known}"
            )
        self._names_changed()
        # Nothing else would tell clients that watch routes.
        self.changes.add_all()

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, or only its queues in one cluster."""
        if self.known.delete_topic(topic, cluster):
            self._route_changed((topic,))
        for broker_name in self._queues.holders(topic):
            brokers = self._sets[broker_name]
            if cluster is None or brokers.cluster == cluster:
                self._queues.drop(broker_name, (topic,))
                for live in [self._live[addr] for addr in brokers.addrs.values()]:
                    live.deleted_here[topic] = None
                    live.unchanged = None

    # --- what clients ask

    def route(self, topic: str, *, acting_master: bool = False) -> TopicRouteData | None:
        """The route of a topic; with ``acting_master`` a set's lowest slave may be shown as the master (id 0)."""
        names = self._queues.holders(topic)
        if not names:
            return None
        queues = {name: self._queues.of(name)[topic] for name in names}
        # RocketMQ's brokers read the routes of these topics to learn which members are alive
        may_promote = acting_master and not topic.startswith(MEMBER_GROUP_PREFIX)
        brokers = [self._broker_data(name) for name in names]
        filter_servers: dict[str, list[str]] = {}
        for data in brokers:
            for addr in data.broker_addrs.values():
                if self._live[addr].filter_servers:
                    filter_servers[addr] = list(self._live[addr].filter_servers)
            if may_promote and data.enable_acting_master and not queues[data.broker_name].perm & PERM_WRITE:
                _promote_lowest(data.broker_addrs)
        logical = {name: part.data(topic, name) for name in names if (part := queues[name].logical) is not None}
        return TopicRouteData(
            broker_datas=brokers,
            queue_datas=[queues[name].data(name) for name in names],
            filter_server_table=filter_servers,
            topic_queue_mapping_by_broker=logical or None,
            absent_brokers=self.known.missing_in(topic, names, {data.cluster for data in brokers}) or None,
        )

    def cluster_info(self) -> ClusterInfo:
        """All broker sets, and the clusters that they form."""
        clusters: dict[str, list[str]] = {}
        for name in sorted(self._sets):
            clusters.setdefault(self._sets[name].cluster, []).append(name)
        return ClusterInfo(
            broker_addr_table={name: self._broker_data(name) for name in sorted(self._sets)},
            cluster_addr_table=dict(sorted(clusters.items())),
        )

    def members(self, broker_name: str) -> BrokerData | None:
        """The brokers of one name."""
        return self._broker_data(broker_name) if broker_name in self._sets else None

    def askable(self) -> list[LiveBroker[C]]:
        """The brokers that answer a request on their connection."""
        return [live for live in self._live.values() if live.answers_probes]

    def tables(self, cluster: str | None = None) -> list[Mapping[str, Queues]]:
        """The topics of each broker set, of all clusters or of one. Each table changes as brokers register."""
        return [own for name, own in self._queues.all() if cluster is None or self._sets[name].cluster == cluster]

    # --- inside

    def _route_changed(self, topics: Collection[str]) -> None:
        self.answers.forget(topics)
        self.changes.add(topics)

    def _find(self, cluster: str, broker_addr: str) -> LiveBroker[C] | None:
        live = self._live.get(broker_addr)
        return live if live is not None and live.cluster == cluster else None

    def _member(self, broker_name: str, broker_id: int) -> LiveBroker[C] | None:
        brokers = self._sets.get(broker_name)
        addr = brokers.addrs.get(broker_id) if brokers is not None else None
        return self._live[addr] if addr is not None else None

    def _join(self, new: Registration, known: LiveBroker[C] | None) -> _BrokerSet:
        """Put a broker into its set; ``known`` is its entry until now, if it had this place already."""
        brokers = self._sets.setdefault(new.broker_name, _BrokerSet(new.cluster, False, {}))
        before = brokers.cluster, brokers.enable_acting_master, known and known.filter_servers
        brokers.cluster = new.cluster
        brokers.enable_acting_master = bool(new.enable_acting_master)
        brokers.addrs[new.broker_id] = new.broker_addr
        if before != (brokers.cluster, brokers.enable_acting_master, new.filter_servers):
            self._queues.touch(new.broker_name)
        self._changed[new.broker_name] = None
        return brokers

    def _remove_where(self, predicate: Callable[[LiveBroker[C]], bool]) -> list[LiveBroker[C]]:
        gone = [live for live in self._live.values() if predicate(live)]
        for live in gone:
            self._leave(live)
        return gone

    def _add_known(self, new: Registration, *, is_whole: bool) -> None:
        """Record the broker that has registered, and the brokers that it names."""
        known, crc = self.known, self.known.crc(new.cluster)
        was_away = known.is_away(new.broker_name)
        if is_whole:
            known.put_whole(new.broker_name, new.cluster)
        else:
            known.put_incomplete(new.broker_name, new.cluster)
        known.add_names(new.cluster, new.known_brokers)
        if known.crc(new.cluster) != crc:
            self._names_changed()
        elif known.is_away(new.broker_name) != was_away:
            self.answers.clear()

    def _names_changed(self) -> None:
        """Have brokers learn with their next 322 that the set of known brokers has changed, and answers made anew."""
        self.answers.clear()
        for live in self._live.values():
            live.unchanged = None

    def _leave(self, gone: LiveBroker[C], *, reason: str = LOST) -> None:
        """Remove a broker. A broker that had its place before, and is still connected, gets the place back."""
        self._remove(gone, reason=reason)
        if (back := self._displaced.pop((gone.broker_name, gone.broker_id), None)) is not None:
            self._reinstate(back)

    def _forget_displaced(self, predicate: Callable[[LiveBroker[C]], bool]) -> None:
        self._displaced = {place: former for place, former in self._displaced.items() if not predicate(former.live)}

    def _reinstate(self, back: _Displaced[C]) -> None:
        live = back.live
        self.rivals.remove(live.broker_addr)
        self._live[live.broker_addr] = live
        self.advertised.put(live.broker_addr, back.advertised)
        brokers = self._sets.setdefault(live.broker_name, _BrokerSet(live.cluster, False, {}))
        brokers.cluster, brokers.enable_acting_master = live.cluster, back.enable_acting_master
        brokers.addrs[live.broker_id] = live.broker_addr
        self._changed[live.broker_name] = None
        if live.provides_topics:
            self._queues.drop(live.broker_name, set(self._queues.of(live.broker_name)) - set(back.topics))
            self._queues.put(live.broker_name, back.topics)
            self.known.put_whole(live.broker_name, live.cluster)
        self._queues.touch(live.broker_name)
        self.answers.clear()

    def _remove(self, gone: LiveBroker[C], *, reason: str = LOST, is_renamed: bool = False) -> None:
        del self._live[gone.broker_addr]
        self.advertised.drop(gone.broker_addr)
        brokers = self._sets[gone.broker_name]
        del brokers.addrs[gone.broker_id]
        self._changed[gone.broker_name] = None
        if not brokers.addrs:
            del self._sets[gone.broker_name]
            # Before the topics are dropped: whoever reads the changed routes must find the broker missing. A drain
            # announces that a broker will leave for good, and its stop confirms this; if it dies instead, it is away.
            if is_renamed or (gone.is_drained and reason == STOPPED):
                self.known.forget(gone.broker_name)
                self._names_changed()
            else:
                self.known.put_away(gone.broker_name, gone.cluster, self._queues.of(gone.broker_name), reason)
                self.answers.clear()
            self._queues.drop_set(gone.broker_name)
            return
        self._queues.touch(gone.broker_name)
        if brokers.enable_acting_master and MASTER_ID not in brokers.addrs:
            for _ in self.wipe_write_perm(gone.broker_name):
                pass  # in one turn: an acting master must never be shown as writable

    def _put_topics(self, new: Registration, is_changed: bool, perm_mask: int) -> None:
        """Store a broker's topics. An unchanged version only adds missing ones, so a wiped permission stays wiped."""
        topics = new.topics if perm_mask == ~0 else _with_perm(new.topics, lambda perm: perm & perm_mask)
        if not is_changed:
            own = self._queues.of(new.broker_name)
            topics = {topic: queues for topic, queues in topics.items() if topic not in own}
        self._queues.put(new.broker_name, topics)

    def _drop_topics(self, new: Registration, arrived: Arrived, absent_too: bool) -> None:
        """Drop the topics that the broker has deleted; with ``absent_too`` all topics that its whole set lacks."""
        own = self._queues.of(new.broker_name)
        gone = [] if new.part is None else [topic for topic in new.part.removed if topic in own]
        # A single topic outside of a part is an increment.
        is_whole = len(new.topics) != 1 if new.part is None else new.part.is_last
        if absent_too and is_whole and arrived.names is not None:
            gone += [topic for topic in own if topic not in arrived.names]
        if gone:
            self._queues.drop(new.broker_name, gone)

    def _follows(self, new: Registration, part: RegistrationPart, known: LiveBroker[C] | None, connection: C) -> bool:
        """Whether ``part`` can be applied to what is known about its broker.

        A first part of a whole set always can. A later part must be the next one, on the connection of the part before.
        Changes must be based on the version held here, and this table must hold all topics of that version: no topic
        may have been deleted here only, or left out because the set had a master then.
        """
        if part.number == 0 and part.base is None:
            return True
        if known is None or (known.broker_name, known.broker_id) != (new.broker_name, new.broker_id):
            return False
        if part.number > 0:
            arrived = known.arrived if known.connection is connection else None
            return arrived is not None and arrived.is_followed_by(part, new.data_version)
        # A topic that the broker has deleted, too, is no longer a difference between this table and its version.
        for topic in part.removed:
            known.deleted_here.pop(topic, None)
        is_lowest = new.broker_id == min(self._sets[new.broker_name].addrs)
        return known.data_version == part.base and not known.deleted_here and (known.provides_topics or not is_lowest)

    def _map_perm(self, broker_name: str, change: Callable[[int], int]) -> Generator[None, None, int]:
        count = 0
        names = iter(list(self._queues.of(broker_name)))
        while part := list(islice(names, SLICE)):
            own = self._queues.of(broker_name)  # it may have been removed or changed since the last step
            changed = _with_perm({topic: own[topic] for topic in part if topic in own}, change)
            self._queues.put(broker_name, changed)
            count += len(changed)
            yield
        return count

    def _broker_data(self, broker_name: str) -> BrokerData:
        brokers = self._sets[broker_name]
        return BrokerData(
            cluster=brokers.cluster,
            broker_name=broker_name,
            broker_addrs=dict(sorted(brokers.addrs.items())),
            enable_acting_master=brokers.enable_acting_master,
        )


def _with_perm(topics: Mapping[str, Queues], change: Callable[[int], int]) -> dict[str, Queues]:
    changed = {queues: queues._replace(perm=change(queues.perm)) for queues in dict.fromkeys(topics.values())}
    return {topic: changed[queues] for topic, queues in topics.items()}


def _older_state(mine: DataVersion, theirs: DataVersion) -> bool:
    return mine.state_version < theirs.state_version


def _promote_lowest(addrs: dict[int, str]) -> None:
    if MASTER_ID not in addrs:
        addrs[MASTER_ID] = addrs.pop(min(addrs))


class Rivals:
    """Brokers that lost their place, a name and an id, to a broker at another address.

    Each registration of one of the two displaces the other, so clients are sent to the two by turns. The NameServer
    tells the broker that registers (103), and shows the other broker to administrators (106) for CONTEST_MS. A broker
    that has only moved to another address drops out after that time, as its old address does not register again.
    """

    def __init__(self) -> None:
        # (broker name, id) -> (address, when), the latest last
        self._lost: dict[tuple[str, int], tuple[str, int]] = {}

    def add(self, broker_name: str, broker_id: int, addr: str, now_ms: int) -> None:
        """Record that the broker at ``addr`` lost this place, or was refused it."""
        self._lost.pop((broker_name, broker_id), None)
        self._lost[broker_name, broker_id] = addr, now_ms
        if len(self._lost) > MAX_PLACES:
            del self._lost[next(iter(self._lost))]

    def remove(self, addr: str) -> None:
        """Remove the broker at ``addr``, which has unregistered."""
        self._lost = {place: lost for place, lost in self._lost.items() if lost[0] != addr}

    def contested(self, now_ms: int) -> dict[str, dict[int, str]]:
        """By name and id, the address of the broker that claims the place and does not have it."""
        self._lost = {place: lost for place, lost in self._lost.items() if now_ms - lost[1] <= CONTEST_MS}
        found: dict[str, dict[int, str]] = {}
        for (name, broker_id), (addr, _) in sorted(self._lost.items()):
            found.setdefault(name, {})[broker_id] = addr
        return found
