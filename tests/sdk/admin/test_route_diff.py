"""What NameServers tell differently: the comparison, and the command at NameServers that are fakes."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.errors import ConnectFailed, RequestTimeout
from skylark.remoting.protocol.requests.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from skylark.sdk.admin.cli import mqadmin
from skylark.sdk.admin.route_diff import Difference, Fact, confirmed, differences, set_differences, topic_differences
from skylark.sdk.admin.session import Settings
from tests.sdk.admin.fake import FakeAdmin, FakeClients, World, route

NAMES = ("broker-a", "broker-b")

sets = st.builds(
    BrokerData,
    st.sampled_from(["c1", "c2"]),
    st.just(""),
    st.dictionaries(st.integers(0, 2), st.sampled_from(["10.0.0.1:1", "10.0.0.2:1"]), min_size=1),
    st.sampled_from([None, "zone"]),
    st.booleans(),
)
queues = st.builds(QueueData, st.just(""), st.integers(0, 2), st.integers(0, 2), st.sampled_from([4, 6]), st.just(0))


@st.composite
def infos(draw: st.DrawFn) -> ClusterInfo:
    table = draw(st.dictionaries(st.sampled_from(NAMES), sets))
    clusters: dict[str, list[str]] = {}
    for name, data in table.items():
        data.broker_name = name
        clusters.setdefault(data.cluster, []).append(name)
    contested = draw(st.none() | st.just({"broker-a": {0: "10.0.0.9:1"}}))
    return ClusterInfo(table, clusters, contested)


@st.composite
def routes(draw: st.DrawFn) -> TopicRouteData | None:
    table = draw(st.dictionaries(st.sampled_from(NAMES), st.tuples(sets, queues)))
    for name, (data, queue) in table.items():
        data.broker_name = queue.broker_name = name
    # In any order, which says nothing.
    order = draw(st.permutations(sorted(table)))
    conf = draw(st.sampled_from([None, "broker-a:4"]))
    found = TopicRouteData([table[name][1] for name in order], [table[name][0] for name in reversed(order)], conf)
    return found if table else None


def content(route: TopicRouteData | None) -> object:
    """What a route says, however it is ordered."""
    if route is None:
        return None
    by_name = (
        {each.broker_name: each for each in route.queue_datas},
        {each.broker_name: each for each in route.broker_datas},
    )
    return by_name, route.order_topic_conf


@given(infos(), infos())
def test_brokers_differ_when_what_is_told_differs_and_each_name_server_has_a_value(
    a: ClusterInfo, b: ClusterInfo
) -> None:
    found = set_differences({"a": a, "b": b})
    told = [(info.broker_addr_table, info.contested) for info in (a, b)]
    assert (found == []) == (told[0] == told[1])
    assert [each.fact for each in found] == [each.fact for each in set_differences({"b": b, "a": a})]
    assert all(set(each.values) == {"a", "b"} and each.values["a"] != each.values["b"] for each in found)
    assert set_differences({"a": a}) == []


@given(st.lists(routes(), min_size=2, max_size=3))
def test_routes_differ_when_what_they_say_differs_whatever_their_order(told: list[TopicRouteData | None]) -> None:
    found = topic_differences("T", dict(zip("abc", told, strict=False)))
    assert (found == []) == all(content(each) == content(told[0]) for each in told)
    # A name server that does not know the topic is one difference, and none of the topic's brokers is another.
    those = [name for name, each in zip("abc", told, strict=False) if each is None]
    rest = [each for each in found if each.fact.what != "known"]
    assert (len(found) - len(rest)) == (0 < len(those) < len(told))
    assert not any(name in each.values for each in rest for name in those)


def test_the_brokers_of_sets_that_differ_are_told_once() -> None:
    told = {"a": route(), "b": route()}
    told["b"].broker_datas[0].broker_addrs = {0: "10.0.0.1:1"}
    assert [each.fact.what for each in topic_differences("T", told)] == ["broker-a broker 0", "broker-a broker 1"]
    assert topic_differences("T", told, {"broker-a"}) == []


def test_only_what_differs_twice_is_told_as_it_is_then() -> None:
    known, late = Fact("topic", "T", "known"), Fact("topic", "T", "order conf")
    first = [Difference(known, {"a": "1", "b": "2"}), Difference(late, {"a": "1", "b": None})]
    second = [Difference(known, {"a": "3", "b": "2"}), Difference(Fact("topic", "U", "known"), {"a": "1", "b": None})]
    assert confirmed(first, second) == second[:1]
    assert differences({"a": {known: "1"}, "b": {known: "1"}}) == []


# --- the command

A, B, C = "10.0.0.1:9876", "10.0.0.2:9876", "10.0.0.3:9876"


@dataclass
class Fakes(FakeClients):
    """A World for each NameServer."""

    worlds: dict[str, World]

    @asynccontextmanager
    async def admin(self, settings: Settings) -> AsyncIterator[Any]:
        yield FakeAdmin(self.worlds.get(settings.namesrv, self.world), settings)


def compare(worlds: dict[str, World], *arguments: str) -> Result:
    command = ["routeDiff", "-n", ";".join(worlds), *arguments]
    return CliRunner().invoke(mqadmin, command, obj=Fakes(World(), worlds), prog_name="mqadmin")


def world(**members: Any) -> World:
    return World(topics=["T", "U"], routes={"T": route(), "U": route()}, **members)


def test_name_servers_that_tell_the_same() -> None:
    result = compare({A: world(), B: world()})
    assert (result.exit_code, result.stdout) == (0, "2 NameServers, 2 brokers, 2 topics: all tell the same\n")


def test_differences_and_a_name_server_that_does_not_answer_are_rows() -> None:
    other = world(kv={("ORDER_TOPIC_CONFIG", "T"): "broker-a:4"})
    other.routes = {"T": route(8)}
    dead = world(errors={("cluster_info",): ConnectFailed(C, "no")})
    result = compare({A: world(), B: other, C: dead}, "--output", "json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["namesrvAddrs"], found["topicCount"]) == ([A, B], 2)
    rows = {(row["kind"], row["name"], row["what"]): row["values"] for row in found["differences"]}
    assert "no" in rows.pop(("nameServer", C, "error"))[C]
    assert rows == {
        ("orderConf", "T", "value"): {A: None, B: "broker-a:4"},
        ("topic", "T", "queues of broker-a"): {
            A: "read=4 write=4 perm=6 flag=0",
            B: "read=8 write=8 perm=6 flag=0",
        },
        ("topic", "U", "known"): {A: "yes", B: None},
    }
    of_one = json.loads(compare({A: world(), B: other}, "-t", "U", "--output", "json").stdout)["differences"]
    assert [row["what"] for row in of_one] == ["known"]
    table = compare({A: world(), B: other}).stdout.splitlines()
    assert table[0].split() == ["#Kind", "#Name", "#What", "#NameServer", "#Value"]
    assert table[-1] == "2 NameServers, 2 brokers, 2 topics: 3 differences"


def test_a_name_server_that_dies_meanwhile_is_left_out_and_told() -> None:
    dying = world(errors={("topic_route",): RequestTimeout(B, 105, 1.0)})
    result = compare({A: world(), B: dying}, "-t", "T", "-t", "U", "--output", "json")
    assert result.exit_code == 1
    assert [row["name"] for row in json.loads(result.stdout)["differences"]] == [B]


def test_what_cannot_be_compared_is_said() -> None:
    result = compare({A: world()})
    assert result.exit_code == 1
    assert "give several" in result.stderr
    result = compare({A: world(), B: world()}, "-t", "Typo")
    assert result.exit_code == 1
    assert "no NameServer knows topic Typo" in result.stderr
