"""Whether a route is whole: the brokers that a NameServer knows and whose queues it lacks."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from skylark.mqcommon.errors import RequestRefused
from skylark.namesrv import known_brokers
from skylark.namesrv.known_brokers import LOST, NOT_WHOLE, STOPPED, UNHEARD, KnownBrokers
from skylark.namesrv.registration import RegistrationPart
from skylark.namesrv.route_answers import Form
from skylark.namesrv.routes import RouteTable
from skylark.remoting.protocol.dialect import Dialect
from skylark.remoting.protocol.requests.registrations import names_crc
from skylark.remoting.protocol.requests.routes import AbsentBroker
from tests.namesrv.registrations import registration, version

CLUSTER = "DefaultCluster"
A = registration(addr="a:1", name="broker-a", topics=("both", "only-a"))
B = registration(addr="b:1", name="broker-b", topics=("both", "only-b"))


@pytest.fixture
def table() -> RouteTable[object]:
    table: RouteTable[object] = RouteTable()
    table.register(A, "a", 0)
    table.register(B, "b", 0)
    return table


def absent(table: RouteTable[object], topic: str = "both") -> list[AbsentBroker]:
    route = table.route(topic)
    assert route is not None
    return route.absent_brokers or []


def lost(name: str, reason: str, *, has_topic: bool) -> list[AbsentBroker]:
    return [AbsentBroker(name, CLUSTER, reason, has_topic)]


@pytest.mark.parametrize(
    ("leave", "reason"),
    [
        (lambda table: table.close("b"), LOST),
        (lambda table: table.expire(200_000) if table.touch(CLUSTER, "a:1", "a", 150_000) else None, LOST),
        (lambda table: table.unregister(CLUSTER, "broker-b", "b:1"), STOPPED),
    ],
    ids=["its connection ended", "it was silent", "it has unregistered"],
)
def test_a_broker_that_left_is_missing_in_the_routes_of_its_topics(
    table: RouteTable[object], leave: Callable[[RouteTable[object]], object], reason: str
) -> None:
    assert absent(table) == []
    leave(table)
    assert absent(table) == lost("broker-b", reason, has_topic=True)
    assert absent(table, "only-a") == []
    assert table.route("only-b") is None
    table.register(B, "b2", 1)
    assert absent(table) == []


def test_a_broker_that_comes_back_in_part_and_leaves_again_is_missing_in_all_of_its_topics(
    table: RouteTable[object],
) -> None:
    table.close("b")
    some = registration(addr="b:1", name="broker-b", topics=("both",))
    table.register(replace(some, part=RegistrationPart(0, False)), "b2", 1)
    table.close("b2")
    assert absent(table) == lost("broker-b", LOST, has_topic=True)
    table.register(registration(addr="c:1", name="broker-c", topics=("only-b", "other")), "c", 2)
    assert absent(table, "only-b") == lost("broker-b", LOST, has_topic=True)


def test_a_broker_is_not_missing_that_left_for_good(table: RouteTable[object]) -> None:
    table.register(replace(B, is_drained=True), "b", 1)
    table.close("b")  # it died before it was empty
    assert absent(table) == lost("broker-b", LOST, has_topic=True)
    table.register(replace(B, is_drained=True), "b", 1)
    table.unregister(CLUSTER, "broker-b", "b:1")
    assert absent(table) == []
    assert table.known.gone(CLUSTER) == ["broker-b"]
    # Others may not have heard of that yet.
    table.register(replace(A, known_brokers=("broker-b",)), "a", 2)
    assert absent(table) == []


def test_a_broker_under_another_name_is_not_missing_under_the_old_one(table: RouteTable[object]) -> None:
    table.register(replace(B, broker_name="broker-c"), "b", 1)
    assert absent(table) == []
    assert table.known.names(CLUSTER) == ["broker-a", "broker-c"]


def test_topics_that_were_deleted_are_not_missing(table: RouteTable[object]) -> None:
    part = RegistrationPart(0, True, version(0), ("both",))
    table.register(replace(B, topics={}, part=part, data_version=version(1)), "b", 1)  # by the broker itself
    table.close("b")
    assert absent(table) == []


def test_topics_deleted_while_a_broker_is_away_are_not_missing(table: RouteTable[object]) -> None:
    table.close("b")
    table.delete_topic("both", "another cluster")
    table.register(A, "a", 1)
    assert absent(table) == lost("broker-b", LOST, has_topic=True)
    table.delete_topic("both")
    table.register(replace(A, data_version=version(2)), "a", 2)
    assert absent(table) == []


def test_a_nameserver_that_was_restarted_knows_from_brokers_who_is_missing() -> None:
    table: RouteTable[object] = RouteTable()
    table.register(replace(A, known_brokers=("broker-b",)), "a", 0)
    table.register(registration(addr="o:1", name="other", cluster="other", topics=("x", "y")), "o", 0)
    assert absent(table) == absent(table, "only-a") == lost("broker-b", UNHEARD, has_topic=False)
    assert absent(table, "x") == []
    # A broker is whole with its last part; a slave of RocketMQ 4 brings no topics.
    slave = replace(B, broker_id=1, broker_addr="s:1", topics={}, enable_acting_master=None)
    table.register(slave, "s", 1)
    table.register(replace(B, part=RegistrationPart(0, False), topics={}), "b", 1)
    assert absent(table) == lost("broker-b", UNHEARD, has_topic=False)
    table.register(replace(B, part=RegistrationPart(1, True)), "b", 1)
    assert absent(table) == []


def test_a_new_broker_that_registers_in_parts_is_missing_until_the_last_one(table: RouteTable[object]) -> None:
    new = registration(addr="c:1", name="broker-c", topics={})
    table.register(replace(new, part=RegistrationPart(0, False)), "c", 0)
    assert absent(table) == lost("broker-c", NOT_WHOLE, has_topic=False)
    # It leaves in the middle: it may have any topic.
    table.close("c")
    assert absent(table) == lost("broker-c", LOST, has_topic=False)


def test_an_administrator_forgets_a_broker(table: RouteTable[object]) -> None:
    table.close("b")
    count = table.changes.count
    table.forget_broker("broker-b")
    assert absent(table) == []
    assert table.changes.since(count) is None  # clients that watch ask for all their routes
    for name, reason in (("broker-b", "is not known"), ("broker-a", "is registered")):
        with pytest.raises(RequestRefused, match=reason):
            table.forget_broker(name)
    table.register(B, "b", 1)
    table.close("b")
    assert absent(table) == lost("broker-b", LOST, has_topic=True)


def test_an_answer_that_is_kept_is_not_given_when_a_broker_has_left(table: RouteTable[object]) -> None:
    form = Form(Dialect.STANDARD, acting_master=False)

    def keep() -> None:
        table.answers.put("only-a", form, b"kept")

    keep()
    table.register(replace(A, known_brokers=("broker-x",)), "a", 1)
    assert table.answers.get("only-a", form) is None
    keep()
    table.forget_broker("broker-x")
    assert table.answers.get("only-a", form) is None


def test_names_have_a_checksum_that_follows_them(table: RouteTable[object]) -> None:
    known = table.known
    assert known.crc(CLUSTER) == names_crc(["broker-b", "broker-a"])
    known.add_names(CLUSTER, ("broker-c",))
    assert known.crc(CLUSTER) == names_crc(known.names(CLUSTER)) != names_crc(["broker-a", "broker-b"])
    known.forget("broker-c")
    assert known.crc(CLUSTER) == names_crc(["broker-a", "broker-b"])


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_brokers, "MAX_BROKERS", 3)
    monkeypatch.setattr(known_brokers, "MAX_TOPICS", 3)
    known = KnownBrokers()
    for name in ("b1", "b2", "b3", "b4"):
        known.put_whole(name, CLUSTER)
        known.put_away(name, CLUSTER, ("t", name), LOST)
    assert known.names(CLUSTER) == ["b2", "b3", "b4"]
    # Those whose topics are not kept may have any.
    assert [(one.broker_name, one.has_topic) for one in known.missing_in("t", (), (CLUSTER,))] == [
        ("b2", False), ("b3", False), ("b4", True),
    ]  # fmt: skip
    known.add_names(CLUSTER, ("b5", "b6"))
    assert len(known.names(CLUSTER)) == 3


def test_a_broker_with_more_topics_than_are_kept_may_have_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_brokers, "MAX_TOPICS", 3)
    known = KnownBrokers()
    known.put_whole("b1", CLUSTER)
    known.put_away("b1", CLUSTER, ("t1", "t2", "t3", "t4"), LOST)
    for topic in ("t1", "t5"):
        assert known.missing_in(topic, (), (CLUSTER,)) == lost("b1", LOST, has_topic=False)


def test_the_names_that_were_forgotten_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_brokers, "MAX_BROKERS", 2)
    known = KnownBrokers()
    for name in ("b1", "b2", "b3"):
        known.put_whole(name, CLUSTER)
        assert known.forget(name)
    assert known.gone(CLUSTER) == ["b2", "b3"]
