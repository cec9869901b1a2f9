from dataclasses import replace

import pytest

from skylark.namesrv import routes
from skylark.namesrv.registration import RegistrationPart
from skylark.namesrv.routes import CONTEST_MS, MAX_PLACES, Outcome, Rivals, RouteTable
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.requests.routes import BrokerData, QueueData
from tests.namesrv.registrations import all_topics, registration


@pytest.fixture
def table() -> RouteTable[object]:
    return RouteTable()


def queue(broker_name: str, perm: int = 6) -> QueueData:
    return QueueData(broker_name=broker_name, read_queue_nums=4, write_queue_nums=4, perm=perm, topic_sys_flag=0)


def perms(table: RouteTable[object], topic: str) -> dict[str, int]:
    route = table.route(topic)
    return {} if route is None else {queue.broker_name: queue.perm for queue in route.queue_datas}


def addrs(table: RouteTable[object], broker_name: str) -> dict[int, str]:
    members = table.members(broker_name)
    return {} if members is None else members.broker_addrs


def test_a_slave_beside_a_master_brings_no_topics(table: RouteTable[object]) -> None:
    table.register(registration(addr="m:1", topics=("t", "u")), "c", 0)
    table.register(registration(addr="s:1", broker_id=1, topics=("x", "y"), acting_master=False), "c", 0)
    assert sorted(all_topics(table)) == ["t", "u"]


@pytest.mark.parametrize(("acting_master", "perm"), [(None, None), (False, 6), (True, 4)])
def test_the_lowest_slave_brings_topics_while_there_is_no_master(
    table: RouteTable[object], acting_master: bool | None, perm: int | None
) -> None:
    table.register(registration(addr="s:1", broker_id=1, topics=("t", "u"), acting_master=acting_master), "c", 0)
    table.register(registration(addr="s:2", broker_id=2, topics=("v", "w"), acting_master=acting_master), "c", 0)
    assert sorted(all_topics(table)) == ([] if perm is None else ["t", "u"])
    assert perms(table, "t") == ({} if perm is None else {"broker-a": perm})


def test_with_acting_masters_the_loss_of_the_master_ends_writing(table: RouteTable[object]) -> None:
    master = registration(addr="m:1", topics=("t", "u"), acting_master=True)
    table.register(master, "master", 0)
    table.register(registration(addr="s:1", broker_id=1, topics=("t", "u"), acting_master=True), "slave", 0)
    table.close("master")
    assert perms(table, "t") == {"broker-a": 4}
    plain, acting = table.route("t"), table.route("t", acting_master=True)
    assert plain is not None and acting is not None
    assert plain.broker_datas[0].broker_addrs == {1: "s:1"}
    assert acting.broker_datas[0].broker_addrs == {0: "s:1"}
    table.register(master, "again", 1)
    assert perms(table, "t") == {"broker-a": 6}
    finish(table.wipe_write_perm("broker-a"))  # a topic without writing is not the sign of a master that is away
    acting = table.route("t", acting_master=True)
    assert acting is not None
    assert acting.broker_datas[0].broker_addrs == {0: "m:1", 1: "s:1"}


def test_by_the_topic_of_a_set_brokers_see_who_lives(table: RouteTable[object]) -> None:
    """A RocketMQ broker that saw a slave as id 0 there would never act, or never come online."""
    topic = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    table.register(registration(addr="s:1", broker_id=1, topics=("t", topic), acting_master=True), "slave", 0)
    for name, shown in (("t", {0: "s:1"}), (topic, {1: "s:1"})):
        route = table.route(name, acting_master=True)
        assert route is not None
        assert route.broker_datas[0].broker_addrs == shown


def test_without_acting_masters_topics_keep_their_permission(table: RouteTable[object]) -> None:
    table.register(registration(addr="m:1", topics=("t", "u"), acting_master=False), "master", 0)
    table.register(registration(addr="s:1", broker_id=1, acting_master=False), "slave", 0)
    table.close("master")
    assert perms(table, "t") == {"broker-a": 6}
    acting = table.route("t", acting_master=True)
    assert acting is not None
    assert acting.broker_datas[0].broker_addrs == {1: "s:1"}


def test_the_last_member_of_a_set_becomes_its_master_and_no_topic_is_away_meanwhile(table: RouteTable[object]) -> None:
    """Its topics come in parts: until the last one has come, the topics of the former master count."""
    table.register(registration(addr="m:1", topics=("t", "u")), "c1", 0)
    table.register(registration(addr="s:1", broker_id=1), "c2", 0)
    table.close("c1")
    first = replace(registration(addr="s:1", topics=("TBW102",), counter=1), part=RegistrationPart(0, is_last=False))
    table.register(first, "c2", 1)
    assert perms(table, "t") == {"broker-a": 6}
    assert addrs(table, "broker-a") == {0: "s:1"}


@pytest.mark.parametrize(
    ("before", "now", "rival", "noted"),
    [
        (0, 0, "old:1", {"broker-a": {0: "old:1"}}),
        # a controller chose another master
        (1, 2, None, {}),
        # the registration is ignored
        (2, 1, "old:1", {"broker-a": {0: "new:1"}}),
    ],
)
def test_a_broker_that_claims_the_same_place_is_noted(
    table: RouteTable[object], before: int, now: int, rival: str | None, noted: dict[str, dict[int, str]]
) -> None:
    table.register(registration(addr="old:1", state_version=before), "c1", 0)
    assert table.register(registration(addr="new:1", state_version=now), "c2", 0).rival_addr == rival
    assert table.rivals.contested(0) == noted


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("has_slave", [True, False])
def test_a_broker_has_its_place_again_when_another_one_of_its_name_leaves(
    table: RouteTable[object], has_slave: bool, is_killed: bool
) -> None:
    if has_slave:
        table.register(registration(addr="slave:1", broker_id=1, topics=("t", "u")), "c0", 0)
    table.register(registration(addr="real:1", topics=("t", "u")), "c1", 0)
    members, topics = addrs(table, "broker-a"), all_topics(table)
    table.register(registration(addr="second:1", topics=("TBW102", "mine")), "c2", 1)
    assert addrs(table, "broker-a")[0] == "second:1"
    if is_killed:
        table.close("c2")
    else:
        assert table.unregister("DefaultCluster", "broker-a", "second:1")
    assert (addrs(table, "broker-a"), all_topics(table)) == (members, topics) and not table.rivals.contested(1)
    # A displaced broker that has gone does not come back.
    table.register(registration(addr="second:1", topics=("t", "u")), "c2", 1)
    table.close("c1")
    assert table.unregister("DefaultCluster", "broker-a", "second:1")
    assert table.route("t") is None or addrs(table, "broker-a") == {1: "slave:1"}


def test_a_set_is_in_the_cluster_that_was_told_last(table: RouteTable[object]) -> None:
    table.register(registration(addr="a:1", cluster="c1", topics=("t", "u")), "c", 0)
    table.register(registration(addr="a:1", cluster="c2", topics=("t", "u")), "c", 0)
    assert table.cluster_info().cluster_addr_table == {"c2": ["broker-a"]}
    assert sorted(all_topics(table, "c2")) == ["t", "u"]


def test_a_wipe_lasts_until_the_topics_change(table: RouteTable[object]) -> None:
    table.register(registration(addr="a:1", topics=("t", "u")), "c", 0)
    table.register(registration(addr="b:1", name="broker-b", topics=("t", "u")), "c", 0)
    assert finish(table.wipe_write_perm("broker-a")) == 2
    assert finish(table.wipe_write_perm("absent")) == 0
    assert perms(table, "t") == {"broker-a": 4, "broker-b": 6}
    table.register(registration(addr="a:1", topics=("t", "u")), "c", 0)
    assert perms(table, "t") == {"broker-a": 4, "broker-b": 6}
    table.register(registration(addr="a:1", topics=("t", "u"), counter=1), "c", 0)
    assert perms(table, "t") == {"broker-a": 6, "broker-b": 6}


def test_adding_the_write_permission_gives_reading_too(table: RouteTable[object]) -> None:
    table.register(registration(addr="a:1", topics=("t", "u"), perm=1), "c", 0)
    assert finish(table.add_write_perm("broker-a")) == 2
    assert perms(table, "u") == {"broker-a": 6}


def test_permissions_of_many_topics_are_changed_in_steps(
    table: RouteTable[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "SLICE", 2)
    table.register(registration(addr="a:1", topics=("t", "u", "v", "w", "x")), "c", 0)
    steps = table.wipe_write_perm("broker-a")
    next(steps)
    table.delete_topic("w")  # what changes meanwhile stays as it is
    table.register(registration(addr="a:1", topics=("y", "z"), counter=1), "c", 0)
    assert sum(1 for _ in steps) == 2
    found = {topic: perms(table, topic)["broker-a"] for topic in all_topics(table)}
    assert found == {"t": 4, "u": 4, "v": 4, "x": 4, "y": 6, "z": 6}
    steps = table.add_write_perm("broker-a")
    next(steps)
    table.close("c")
    assert finish(steps) == 2
    assert all_topics(table) == set()


def test_an_unchanged_version_brings_back_a_topic_that_was_deleted(table: RouteTable[object]) -> None:
    table.register(registration(addr="a:1", topics=("t", "u")), "c", 0)
    table.delete_topic("t")
    assert sorted(all_topics(table)) == ["u"]
    table.register(registration(addr="a:1", topics=("t", "u")), "c", 0)
    assert sorted(all_topics(table)) == ["t", "u"]


def test_topics_can_be_put_for_known_brokers_only(table: RouteTable[object]) -> None:
    table.register(registration(addr="a:1", topics=()), "c", 0)
    assert table.put_topic("t", [queue("broker-a"), queue("absent")]) is False
    assert table.put_topic("t", []) is False
    assert sorted(all_topics(table)) == []
    assert table.put_topic("t", [queue("broker-a", perm=4)]) is True
    assert perms(table, "t") == {"broker-a": 4}


def test_filter_servers_stand_in_the_route(table: RouteTable[object]) -> None:
    table.register(registration(addr="a:1", topics=("t", "u"), filter_servers=("f:1",)), "c", 0)
    route = table.route("t")
    assert route is not None
    assert route.filter_server_table == {"a:1": ["f:1"]}


def test_routes_are_copies_of_the_table(table: RouteTable[object]) -> None:
    table.register(registration(addr="a:1", topics=("t", "u")), "c", 0)
    route = table.route("t")
    assert route is not None
    route.broker_datas[0].broker_addrs.clear()
    route.queue_datas.clear()
    assert table.members("broker-a") == BrokerData(
        cluster="DefaultCluster", broker_name="broker-a", broker_addrs={0: "a:1"}, enable_acting_master=False
    )
    assert perms(table, "t") == {"broker-a": 6}


def test_the_last_one_that_lost_a_place_is_named_until_its_time_is_over() -> None:
    rivals = Rivals()
    rivals.add("b", 0, "one", 0)
    rivals.add("b", 0, "two", 10)
    rivals.add("a", 1, "three", 20)
    assert rivals.contested(CONTEST_MS) == {"a": {1: "three"}, "b": {0: "two"}}
    assert rivals.contested(CONTEST_MS + 11) == {"a": {1: "three"}}
    assert rivals.contested(CONTEST_MS + 21) == {}


def test_one_that_is_gone_claims_nothing() -> None:
    rivals = Rivals()
    rivals.add("a", 0, "one", 0)
    rivals.add("b", 0, "two", 0)
    rivals.remove("one")
    rivals.remove("never there")
    assert rivals.contested(0) == {"b": {0: "two"}}


def test_no_more_than_so_many_are_remembered() -> None:
    rivals = Rivals()
    for number in range(MAX_PLACES + 5):
        rivals.add("a", number, "one", 0)
    (places,) = rivals.contested(0).values()
    assert sorted(places) == list(range(5, MAX_PLACES + 5))


def test_a_master_of_an_older_epoch_neither_gets_its_place_back_nor_keeps_another(table: RouteTable[object]) -> None:
    table.register(registration(addr="old:1", broker_id=1, state_version=1), "c1", 0)
    table.register(registration(addr="new:1", state_version=2), "c2", 0)
    assert addrs(table, "broker-a") == {0: "new:1", 1: "old:1"}
    told = table.register(registration(addr="old:1", state_version=1), "c1", 0)
    assert (told.outcome, told.rival_addr) == (Outcome.STALE, "new:1")
    assert addrs(table, "broker-a") == {0: "new:1"}
