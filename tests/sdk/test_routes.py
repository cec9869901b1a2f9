import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcommon.errors import ProtocolError
from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from sdk.routes import MAX_QUEUES, RouteCache, make_route, reader_of


def data(*brokers: tuple[str, dict[int, str], int, int, int], order: str | None = None) -> TopicRouteData:
    """(name, addresses, read queues, write queues, perm) for each broker."""
    return TopicRouteData(
        [QueueData(name, read, write, perm) for name, _, read, write, perm in brokers],
        [BrokerData("c1", name, addrs) for name, addrs, *_ in brokers],
        order,
    )


def test_queues_are_sorted_by_broker_and_number() -> None:
    route = make_route("t", data(("b", {0: "h:2"}, 1, 2, 6), ("a", {0: "h:1"}, 2, 1, 6)))
    assert route.writable == (MessageQueue("t", "a", 0), MessageQueue("t", "b", 0), MessageQueue("t", "b", 1))
    assert route.readable == (MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0))
    assert route.writable_at["h:2"] == (MessageQueue("t", "b", 0), MessageQueue("t", "b", 1))


def test_permissions_decide_what_is_written_and_read() -> None:
    route = make_route("t", data(("r", {0: "h:1"}, 1, 1, 4), ("w", {0: "h:2"}, 1, 1, 2)))
    assert [queue.broker_name for queue in route.readable] == ["r"]
    assert [queue.broker_name for queue in route.writable] == ["w"]


def test_without_a_master_queues_are_read_but_not_written() -> None:
    route = make_route("t", data(("a", {1: "h:1", 2: "h:2"}, 2, 2, 6)))
    assert route.writable == () and len(route.readable) == 2
    assert route.master("a") is None
    assert route.reader("a") == "h:1"
    assert route.reader("a", 2) == "h:2"
    assert route.reader("nobody") is None


def test_an_ordered_topic_keeps_the_queues_of_a_broker_that_is_away() -> None:
    route = make_route("t", data(("a", {0: "h:1"}, 4, 4, 6), order="a:1;b:2;nonsense"))
    assert [(queue.broker_name, queue.queue_id) for queue in route.writable] == [("a", 0), ("b", 0), ("b", 1)]
    assert dict(route.writable_at) == {"h:1": (MessageQueue("t", "a", 0),)}


def test_an_impossible_number_of_queues_is_refused() -> None:
    with pytest.raises(ProtocolError, match="queues"):
        make_route("t", data(("a", {0: "h:1"}, 4, MAX_QUEUES + 1, 6)))


@given(st.dictionaries(st.integers(0, 5), st.text(min_size=1), min_size=1), st.integers(0, 5))
def test_a_reader_is_found_while_any_replica_is(addrs: dict[int, str], preferred: int) -> None:
    assert reader_of(addrs, preferred) == addrs.get(preferred, addrs[min(addrs)])


def test_the_cache_keeps_the_object_while_nothing_changes() -> None:
    cache = RouteCache()
    first = cache.put(make_route("t", data(("a", {0: "h:1"}, 1, 1, 6))))
    assert cache.put(make_route("t", data(("a", {0: "h:1"}, 1, 1, 6)))) is first
    changed = cache.put(make_route("t", data(("a", {0: "h:9"}, 1, 1, 6))))
    assert changed is not first and cache.get("t") is changed


def test_the_cache_lists_each_address_once() -> None:
    cache = RouteCache()
    cache.put(make_route("t", data(("a", {0: "h:1", 1: "h:2"}, 1, 1, 6))))
    cache.put(make_route("u", data(("a", {0: "h:1"}, 1, 1, 6), ("b", {0: "h:3"}, 1, 1, 6))))
    assert cache.addrs() == ["h:1", "h:2", "h:3"]
    assert cache.masters() == ["h:1", "h:3"]
    assert cache.topics() == ["t", "u"]
    cache.drop("t")
    assert cache.topics() == ["u"]
