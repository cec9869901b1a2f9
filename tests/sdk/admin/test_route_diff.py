"""What NameServers tell differently."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.remoting.protocol.requests.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from skylark.sdk.admin.route_diff import Difference, Fact, confirmed, differences, set_differences, topic_differences

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
    """The content of a route, in whatever order."""
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
    told = {
        name: TopicRouteData([QueueData("broker-a", 4, 4, 6, 0)], [BrokerData("c1", "broker-a", addrs)])
        for name, addrs in (("a", {0: "10.0.0.2:1", 1: "10.0.0.3:1"}), ("b", {0: "10.0.0.1:1"}))
    }
    assert [each.fact.what for each in topic_differences("T", told)] == ["broker-a broker 0", "broker-a broker 1"]
    assert topic_differences("T", told, {"broker-a"}) == []


def test_only_what_differs_twice_is_told_as_it_is_then() -> None:
    known, late = Fact("topic", "T", "known"), Fact("topic", "T", "order conf")
    first = [Difference(known, {"a": "1", "b": "2"}), Difference(late, {"a": "1", "b": None})]
    second = [Difference(known, {"a": "3", "b": "2"}), Difference(Fact("topic", "U", "known"), {"a": "1", "b": None})]
    assert confirmed(first, second) == second[:1]
    assert differences({"a": {known: "1"}, "b": {known: "1"}}) == []
