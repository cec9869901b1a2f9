"""Any order of events against a naive model, and: what was heard matters, not in which order."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skylark.namesrv.route_answers import Form
from skylark.namesrv.routes import Outcome, Registration, RouteTable
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.dialect import Dialect, encode_body
from skylark.remoting.protocol.requests.routes import QueueData
from tests.namesrv.registrations import all_topics, live_addrs, registration

NAMES = ("broker-a", "broker-b", "broker-c")
CLUSTERS = ("c1", "c2")
ADDRS = tuple(f"10.0.0.{n}:10911" for n in range(6))
TOPICS = tuple(f"t{n}" for n in range(5))
CONNECTIONS = tuple(object() for _ in range(3))
TIMEOUT_MS = 100

topic_sets = st.sets(st.sampled_from(TOPICS)).map(lambda names: tuple(sorted(names)))
registrations = st.builds(
    registration,
    addr=st.sampled_from(ADDRS),
    name=st.sampled_from(NAMES),
    cluster=st.sampled_from(CLUSTERS),
    broker_id=st.integers(0, 2),
    topics=topic_sets,
    counter=st.integers(0, 2),
    state_version=st.integers(0, 2),
    timeout_ms=st.sampled_from([TIMEOUT_MS, 3 * TIMEOUT_MS]),
    acting_master=st.sampled_from([None, False, True]),
    filter_servers=st.sampled_from([(), ("10.0.1.1:1",)]),
    perm=st.sampled_from([6, 4]),
)


@dataclass
class Known:
    """A live broker in the model."""

    told: Registration
    connection: object
    last_heard_ms: int


class RouteTableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table: RouteTable[object] = RouteTable()
        self.live: dict[str, Known] = {}
        # Brokers whose place another one took, by name and id.
        self.displaced: dict[tuple[str, int], Known] = {}
        self.now_ms = 0
        self.told: dict[str, tuple[int, str]] = {}
        # The routes as of the changes counted so far.
        self.seen: tuple[int, dict[str, object]] = 0, {}

    @invariant()
    def each_change_of_a_route_is_noted(self) -> None:
        count, before = self.seen
        # Brokers that are away change no queue: whoever needs to know them asks for the route.
        routes: dict[str, object] = {
            topic: replace(route, absent_brokers=None).to_wire()
            for topic in TOPICS
            if (route := self.table.route(topic)) is not None
        }
        changed = {topic for topic in TOPICS if routes.get(topic) != before.get(topic)}
        noted = self.table.changes.since(count)
        assert noted is not None
        assert changed <= {topic for topics in noted for topic in topics}
        self.seen = self.table.changes.count, routes

    @rule(new=registrations, connection=st.sampled_from(CONNECTIONS), delete_absent=st.booleans())
    def register(self, new: Registration, connection: object, delete_absent: bool) -> None:
        topics_before = self.topics_by_broker().get(new.broker_name, set())
        result = self.table.register(new, connection, self.now_ms, delete_absent_topics=delete_absent)
        holders = [
            addr
            for addr, known in self.live.items()
            if (known.told.broker_name, known.told.broker_id) == (new.broker_name, new.broker_id)
        ]
        self.forget(lambda known: known.told.broker_addr == new.broker_addr)
        rival = next((self.live[addr] for addr in holders if addr != new.broker_addr), None)
        if rival and rival.told.data_version.state_version > new.data_version.state_version:
            assert result.outcome is Outcome.STALE
            self.live.pop(new.broker_addr, None)
        elif not holders and len(new.topics) == 1:
            assert result.outcome is Outcome.INCREMENT_BEFORE_FULL
        else:
            assert result.outcome is Outcome.REGISTERED
            place = new.broker_name, new.broker_id
            for addr in holders:
                gone = self.live.pop(addr)
                if addr != new.broker_addr:
                    self.displaced.pop(place, None)
                    is_election = gone.told.data_version.state_version < new.data_version.state_version
                    if not is_election and gone.connection is not connection:
                        self.displaced[place] = gone
            self.live[new.broker_addr] = Known(new, connection, self.now_ms)
            if new.broker_id == 0:
                # A registration of one topic is an increment: it removes nothing.
                removes = delete_absent and len(new.topics) != 1
                expected = set(new.topics) | (set() if removes else topics_before)
                assert self.topics_by_broker().get(new.broker_name, set()) == expected

    @invariant()
    def every_name_is_here_or_away(self) -> None:
        known = self.table.known
        here = {one.told.broker_name for one in self.live.values()}
        assert here <= {name for cluster in CLUSTERS for name in known.names(cluster)}
        # A broker whose topics came once is in all their routes, or missing in them.
        for topic in TOPICS:
            route = self.table.route(topic)
            if route is not None:
                held = {queue.broker_name for queue in route.queue_datas}
                assert held.isdisjoint(one.broker_name for one in route.absent_brokers or ())

    @rule(known=st.sampled_from(ADDRS), cluster=st.sampled_from(CLUSTERS), name=st.sampled_from(NAMES))
    def unregister(self, known: str, cluster: str, name: str) -> None:
        told = self.live[known].told if known in self.live else None
        fits = told is not None and (told.cluster, told.broker_name) == (cluster, name)
        assert self.table.unregister(cluster, name, known) is fits
        self.forget(lambda each: each.told.broker_addr == known)
        if fits:
            self.leave(known)

    def leave(self, addr: str) -> None:
        """A broker leaves: the broker that had its place before has it again."""
        told = self.live.pop(addr).told
        if (back := self.displaced.pop((told.broker_name, told.broker_id), None)) is not None:
            self.live[back.told.broker_addr] = back

    def forget(self, predicate: Callable[[Known], bool]) -> None:
        self.displaced = {place: known for place, known in self.displaced.items() if not predicate(known)}

    @rule(known=st.sampled_from(ADDRS), cluster=st.sampled_from(CLUSTERS), connection=st.sampled_from(CONNECTIONS))
    def touch(self, known: str, cluster: str, connection: object) -> None:
        live = self.table.touch(cluster, known, connection, self.now_ms)
        if known in self.live and self.live[known].told.cluster == cluster:
            self.live[known].connection = connection
            self.live[known].last_heard_ms = self.now_ms
            assert live is not None and live.data_version == self.live[known].told.data_version
        else:
            assert live is None

    @rule(connection=st.sampled_from(CONNECTIONS))
    def close(self, connection: object) -> None:
        self.forget(lambda known: known.connection is connection)
        gone = {addr for addr, known in self.live.items() if known.connection is connection}
        assert {live.broker_addr for live in self.table.close(connection)} == gone
        for addr in gone:
            self.leave(addr)

    @rule(ms=st.integers(0, 2 * TIMEOUT_MS))
    def expire(self, ms: int) -> None:
        self.now_ms += ms
        self.forget(lambda known: self.now_ms - known.last_heard_ms > known.told.heartbeat_timeout_ms)
        gone = {
            addr
            for addr, known in self.live.items()
            if self.now_ms - known.last_heard_ms > known.told.heartbeat_timeout_ms
        }
        assert {live.broker_addr for live in self.table.expire(self.now_ms)} == gone
        for addr in gone:
            self.leave(addr)

    @rule(name=st.sampled_from(NAMES))
    def wipe(self, name: str) -> None:
        topics = self.topics_by_broker().get(name, set())
        assert finish(self.table.wipe_write_perm(name)) == len(topics)
        for topic in topics:
            assert not self.queue(topic, name).perm & 2

    @rule(name=st.sampled_from(NAMES))
    def add(self, name: str) -> None:
        topics = self.topics_by_broker().get(name, set())
        assert finish(self.table.add_write_perm(name)) == len(topics)
        for topic in topics:
            assert self.queue(topic, name).perm == 6

    @rule(topic=st.sampled_from(TOPICS), cluster=st.sampled_from([None, *CLUSTERS]))
    def delete(self, topic: str, cluster: str | None) -> None:
        others = {other: all_topics(self.table, other) for other in CLUSTERS if cluster not in (None, other)}
        self.table.delete_topic(topic, cluster)
        assert {other: all_topics(self.table, other) for other in others} == others
        if cluster is None:
            assert self.table.route(topic) is None
        else:
            assert topic not in all_topics(self.table, cluster)

    @rule(topic=st.sampled_from(TOPICS), name=st.sampled_from(NAMES))
    def put(self, topic: str, name: str) -> None:
        queue = QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6, topic_sys_flag=0)
        done = self.table.put_topic(topic, [queue])
        assert done is (self.table.members(name) is not None)

    @rule()
    def tell_slaves(self) -> None:
        """Each change of a lowest member is told once, whatever happened meanwhile; a set that is new has none."""
        info = self.table.cluster_info().broker_addr_table
        expected = {}
        for name, data in info.items():
            lowest = min(data.broker_addrs.items())
            before = self.told.get(name)
            if before is not None and before != lowest and data.enable_acting_master:
                expected[name] = lowest
        changes = {change.broker_name: change for change in self.table.min_broker_changes()}
        assert {name: (c.min_broker_id, c.min_broker_addr) for name, c in changes.items()} == expected
        for name, change in changes.items():
            addrs = info[name].broker_addrs
            assert set(change.slaves) == {addr for broker_id, addr in addrs.items() if broker_id != 0}
            assert change.offline_broker_addr not in addrs.values()
        self.told = {name: min(data.broker_addrs.items()) for name, data in info.items()}

    @invariant()
    def sets_that_vanished_have_no_past(self) -> None:
        self.told = {name: told for name, told in self.told.items() if self.table.members(name) is not None}

    @invariant()
    def the_lowest_slave_stands_in_for_reading_only(self) -> None:
        for topic in all_topics(self.table):
            plain, acting = self.table.route(topic), self.table.route(topic, acting_master=True)
            assert plain is not None and acting is not None
            assert acting.queue_datas == plain.queue_datas
            for data, shown, queue in zip(plain.broker_datas, acting.broker_datas, plain.queue_datas, strict=True):
                if 0 in data.broker_addrs or not data.enable_acting_master or queue.perm & 2:
                    assert shown == data
                else:
                    assert shown.broker_addrs[0] == data.broker_addrs[min(data.broker_addrs)]
                    assert sorted(shown.broker_addrs.values()) == sorted(data.broker_addrs.values())

    def topics_by_broker(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for topic in all_topics(self.table):
            route = self.table.route(topic)
            assert route is not None
            for queue in route.queue_datas:
                found.setdefault(queue.broker_name, set()).add(topic)
        return found

    def queue(self, topic: str, name: str) -> QueueData:
        route = self.table.route(topic)
        assert route is not None
        return next(queue for queue in route.queue_datas if queue.broker_name == name)

    @invariant()
    def no_kept_answer_is_stale(self) -> None:
        assert self.table.topic_count == len(all_topics(self.table))
        for topic, acting in product(TOPICS, (False, True)):
            form = Form(Dialect.STANDARD, acting)
            route = self.table.route(topic, acting_master=acting)
            assert (route is None) == (topic not in all_topics(self.table))
            fresh = None if route is None else encode_body(route)
            kept = self.table.answers.get(topic, form)
            assert kept in (None, fresh)
            if kept is None and fresh is not None:
                self.table.answers.put(topic, form, fresh)

    @invariant()
    def live_brokers_are_those_of_the_model(self) -> None:
        assert live_addrs(self.table) == sorted(self.live)

    @invariant()
    def the_members_of_sets_are_the_live_brokers(self) -> None:
        info = self.table.cluster_info()
        members = {
            (name, broker_id): addr
            for name, data in info.broker_addr_table.items()
            for broker_id, addr in data.broker_addrs.items()
        }
        told = {(k.told.broker_name, k.told.broker_id): addr for addr, k in self.live.items()}
        assert members == told
        assert all(data.broker_addrs for data in info.broker_addr_table.values())

    @invariant()
    def each_set_is_in_one_cluster(self) -> None:
        info = self.table.cluster_info()
        assert sorted(n for names in info.cluster_addr_table.values() for n in names) == sorted(info.broker_addr_table)
        for cluster, names in info.cluster_addr_table.items():
            assert names
            assert all(info.broker_addr_table[name].cluster == cluster for name in names)

    @invariant()
    def routes_list_queues_of_living_sets_only(self) -> None:
        for topic in all_topics(self.table):
            route = self.table.route(topic)
            assert route is not None
            names = [queue.broker_name for queue in route.queue_datas]
            assert names
            assert names == [data.broker_name for data in route.broker_datas]
            for data in route.broker_datas:
                assert data.broker_addrs
                assert set(data.broker_addrs.values()) <= set(self.live)

    @invariant()
    def topics_of_clusters_and_all_topics_agree(self) -> None:
        clusters = self.table.cluster_info().cluster_addr_table
        assert {t for c in clusters for t in all_topics(self.table, c)} == set(all_topics(self.table))


TestRouteTable = RouteTableMachine.TestCase
TestRouteTable.settings = settings(stateful_step_count=40, deadline=None)


def view(table: RouteTable[object]) -> dict[str, Any]:
    """All that a client can see, but for brokers that are away: only a NameServer with a past knows them."""
    routes = {topic: table.route(topic) for topic in all_topics(table)}
    return {"clusters": table.cluster_info()} | {
        topic: None if route is None else replace(route, absent_brokers=None) for topic, route in routes.items()
    }


@st.composite
def clusters(draw: st.DrawFn) -> list[Registration]:
    """The registrations of brokers that agree: slaves have their master's topics."""
    found = []
    for name in draw(st.sets(st.sampled_from(NAMES), min_size=1)):
        topics = draw(topic_sets.filter(lambda names: len(names) != 1))
        acting_master = draw(st.booleans())
        for broker_id in draw(st.sets(st.integers(0, 2), min_size=1)):
            new = registration(
                addr=f"{name}-{broker_id}:1", name=name, cluster=CLUSTERS[NAMES.index(name) % 2], broker_id=broker_id,
                topics=topics, counter=100, state_version=5, acting_master=acting_master,
            )  # fmt: skip
            found.append(new)
    return found


@given(st.data())
def test_after_quiescence_the_order_of_registrations_does_not_matter(data: st.DataObject) -> None:
    final = data.draw(clusters())
    orders = [data.draw(st.permutations(final)) for _ in range(2)]
    tables = [RouteTable[object]() for _ in orders]
    for table, order in zip(tables, orders, strict=True):
        for new in order:
            assert table.register(new, object(), 0).outcome is Outcome.REGISTERED
    assert view(tables[0]) == view(tables[1])
    assert live_addrs(tables[0]) == sorted(new.broker_addr for new in final)


@given(st.data())
def test_after_quiescence_history_does_not_matter(data: st.DataObject) -> None:
    """Two NameServers, one with a past and one just started, hear the same brokers and answer the same."""
    final = data.draw(clusters())
    old, fresh = RouteTable[object](), RouteTable[object]()
    for now_ms, new in enumerate(data.draw(st.lists(registrations | st.sampled_from(final), max_size=8))):
        old.register(new, object(), now_ms)
    long_after = 1_000_000
    old.expire(long_after)
    for table, order in ((old, data.draw(st.permutations(final))), (fresh, final)):
        for new in order:
            table.register(new, object(), long_after)
    assert view(old) == view(fresh)


@given(st.data())
def test_brokers_that_stayed_connected_overwrite_their_past(data: st.DataObject) -> None:
    """With ``deleteTopicWithBrokerRegistration`` not even topics of the past remain."""
    final = data.draw(clusters())
    old, fresh = RouteTable[object](), RouteTable[object]()
    for new in final:
        past = registration(
            addr=new.broker_addr, name=new.broker_name, cluster=new.cluster, broker_id=new.broker_id,
            topics=data.draw(topic_sets), acting_master=new.enable_acting_master,
        )  # fmt: skip
        old.register(past, object(), 0)
    for table, order in ((old, data.draw(st.permutations(final))), (fresh, final)):
        for new in order:
            table.register(new, object(), 1, delete_absent_topics=True)
    assert view(old) == view(fresh)
