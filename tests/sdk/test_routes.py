import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.routes import (
    LOST,
    NOT_WHOLE,
    STOPPED,
    UNHEARD,
    AbsentBroker,
    BrokerData,
    QueueData,
    TopicRouteData,
)
from skylark.remoting.protocol.requests.topics import TopicQueueMappingInfo
from skylark.sdk.routes import MAX_QUEUES, RouteCache, absent_text, make_route, reader_of, with_unheard


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


def test_an_ordered_topic_keeps_the_queues_of_a_broker_that_is_away() -> None:
    route = make_route("t", data(("a", {0: "h:1"}, 4, 4, 6), order="a:1;b:2;nonsense"))
    assert [(queue.broker_name, queue.queue_id) for queue in route.writable] == [("a", 0), ("b", 0), ("b", 1)]
    assert dict(route.writable_at) == {"h:1": (MessageQueue("t", "a", 0),)}


GOOD = ("good", {0: "h:1"}, 2, 2, 6)
GOOD_QUEUES = (MessageQueue("t", "good", 0), MessageQueue("t", "good", 1))


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (("bad", {0: "h:2"}, MAX_QUEUES + 1, MAX_QUEUES + 1, 6), f"{MAX_QUEUES + 1} queues of broker 'bad'"),
        (("bad", {0: "h:2"}, -1, -1, 6), "-1 queues of broker 'bad'"),
        (("bad", {0: "nowhere"}, 1, 1, 6), "broker 'bad' id 0 at 'nowhere'"),
        (("bad", {0: "h:99999"}, 1, 1, 6), "the queues of broker 'bad' (no address)"),
        (("bad", {-1: "h:2"}, 1, 1, 6), "broker 'bad' id -1 at 'h:2'"),
        (("bad", {}, 1, 1, 6), "the queues of broker 'bad' (no address)"),
    ],
)
def test_what_cannot_be_used_is_skipped_and_told(bad: tuple[str, dict[int, str], int, int, int], told: str) -> None:
    route = make_route("t", data(bad, GOOD))
    assert route.writable == route.readable == GOOD_QUEUES
    assert dict(route.writable_at) == {"h:1": GOOD_QUEUES}
    assert told in "; ".join(route.skipped)
    assert make_route("t", data(GOOD)).skipped == ()


def test_queues_of_many_brokers_do_not_fill_the_memory() -> None:
    many = [(f"b{number}", {0: f"h:{number + 2}"}, MAX_QUEUES - 2, MAX_QUEUES - 2, 6) for number in range(100)]
    route = make_route("t", data(GOOD, *many))
    assert len(route.writable) == MAX_QUEUES and set(GOOD_QUEUES) <= set(route.writable)
    assert len(route.skipped) == 2 * 99
    ordered = make_route("t", data(GOOD, order=f"good:1;x:{MAX_QUEUES};y:{'9' * 5000};z:2"))
    assert len(ordered.writable) == 3 and len(ordered.skipped) == 2


def test_queues_of_a_broker_that_is_not_in_the_route_are_skipped() -> None:
    answer = data(GOOD)
    answer.queue_datas.append(QueueData("stranger", 4, 4, 6))
    assert make_route("t", answer).readable == GOOD_QUEUES


def static(*parts: TopicQueueMappingInfo, perm: int = 6, brokers: str = "abc") -> TopicRouteData:
    return TopicRouteData(
        [QueueData(part.bname, 1, 1, perm) for part in parts],
        [BrokerData("c", name, {0: f"{name}:1", 1: f"{name}:2"}) for name in brokers],
        topic_queue_mapping_by_broker={part.bname: part for part in parts},
    )


def part(broker: str, ids: dict[int, int], epoch: int = 1, total: int = 3) -> TopicQueueMappingInfo:
    return TopicQueueMappingInfo("t", total_queues=total, bname=broker, epoch=epoch, curr_id_map=ids)


def logical(*numbers: int) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue("t", "__syslo__global__", number) for number in numbers)


def test_a_static_topic_has_logical_queues_that_stay_when_they_move() -> None:
    before = make_route("t", static(part("a", {0: 0, 2: 1}), part("b", {1: 0})))
    assert before.writable == before.readable == logical(0, 1, 2)
    assert before.writable_at == {"a:1": logical(0, 2), "b:1": logical(1)}
    assert before.master_of(logical(2)[0]) == "a:1"
    assert before.addrs_of(logical(1)[0]) == {0: "b:1", 1: "b:2"}
    after = make_route("t", static(part("a", {0: 0, 2: 1}), part("b", {1: 0}), part("c", {2: 0}, epoch=2)))
    assert after.writable == before.writable
    assert after.master_of(logical(2)[0]) == "c:1"
    assert after.without("c", "c:1").master_of(logical(2)[0]) is None


def test_a_logical_queue_whose_leader_is_away_stays_a_queue() -> None:
    route = make_route("t", static(part("a", {0: 0, 2: 1}), brokers="a"))
    assert route.readable == logical(0, 1, 2)
    assert route.master_of(logical(1)[0]) is None
    assert route.has_queue_of(logical(1)[0])
    assert not route.has_queue_of(logical(5)[0])
    assert route.writable_at == {"a:1": logical(0, 2)}
    drained = make_route("t", static(part("a", {0: 0}, total=1), perm=4))
    assert (drained.writable, dict(drained.writable_at)) == (logical(0), {})


def test_mappings_without_a_queue_leave_a_topic_as_it_was() -> None:
    plain = data(GOOD)
    for mappings in (None, {}):
        plain.topic_queue_mapping_by_broker = mappings
        assert make_route("t", plain).readable == GOOD_QUEUES


def test_an_impossible_part_of_a_static_topic_is_left_out() -> None:
    route = make_route("t", static(part("a", {0: 0}, total=MAX_QUEUES + 1), part("b", {1: 0}, total=2)))
    assert route.readable == logical(0, 1)
    assert "static topic" in "; ".join(route.skipped)


def test_an_address_where_another_broker_listens_is_skipped() -> None:
    def is_elsewhere(name: str, addr: str) -> bool:
        return (name, addr) == ("moved", "h:1")

    route = make_route("t", data(("moved", {0: "h:1", 1: "h:2"}, 1, 1, 6), GOOD), is_elsewhere)
    assert route.master("moved") is None and route.brokers["moved"] == {1: "h:2"}
    assert route.writable == GOOD_QUEUES
    assert dict(route.writable_at) == {"h:1": GOOD_QUEUES}


BROKERS = st.dictionaries(
    st.sampled_from("abc"),
    st.tuples(
        st.dictionaries(st.integers(0, 2), st.sampled_from(["h:1", "h:2", "h:3"]), min_size=1), st.integers(0, 3)
    ),
    min_size=1,
)


@given(BROKERS, st.sampled_from("abc"), st.sampled_from(["h:1", "h:2", "h:3"]))
def test_a_route_forgets_one_address_of_one_broker(
    brokers: dict[str, tuple[dict[int, str], int]], name: str, addr: str
) -> None:
    answer = data(*((each, addrs, count, count, 6) for each, (addrs, count) in brokers.items()))
    cache = RouteCache()
    before = cache.put(make_route("t", answer))
    had_it = addr in before.brokers.get(name, {}).values()
    assert cache.forget_address(name, addr) == (["t"] if had_it else [])
    after = cache.get("t")
    assert after is not None
    filtered = make_route("t", answer, lambda each, at: (each, at) == (name, addr))
    assert after.writable_at == filtered.writable_at
    if had_it:
        assert after.brokers == filtered.brokers
    assert after.writable == before.writable, "keys keep their queues until the NameServer says otherwise"
    assert cache.forget_address(name, addr) == []


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


def test_the_addresses_follow_what_the_cache_is_given_and_forgets() -> None:
    cache = RouteCache()
    cache.put(make_route("t", data(("a", {0: "h:1", 1: "h:2"}, 1, 1, 6))))
    assert (cache.addrs(), cache.masters()) == (["h:1", "h:2"], ["h:1"])
    cache.put(make_route("u", data(("b", {0: "h:3"}, 1, 1, 6))))
    assert (cache.addrs(), cache.masters()) == (["h:1", "h:2", "h:3"], ["h:1", "h:3"])
    cache.put(make_route("t", data(("a", {0: "h:4"}, 1, 1, 6))))
    assert (cache.addrs(), cache.masters()) == (["h:4", "h:3"], ["h:4", "h:3"])
    cache.forget_address("a", "h:4")
    assert (cache.addrs(), cache.masters()) == (["h:3"], ["h:3"])
    cache.forget_address("b", "h:3")
    assert (cache.addrs(), cache.masters()) == ([], [])


def test_an_answer_for_a_new_topic_goes_through_no_other_route() -> None:
    cache = RouteCache()
    cache.put(make_route("t", data(("a", {0: "h:1"}, 1, 1, 6))))
    known = cache._addrs()
    cache.put(make_route("u", data(("b", {0: "h:2"}, 1, 1, 6))))
    assert cache._addrs() is known and cache.addrs() == ["h:1", "h:2"]


WHOLE = data(("a", {0: "h:1"}, 1, 1, 6), ("b", {0: "h:2", 1: "h:3"}, 2, 1, 6))


@pytest.mark.parametrize(
    ("reason", "is_kept"), [(UNHEARD, True), (NOT_WHOLE, True), (LOST, False), (STOPPED, False), ("", False)]
)
def test_a_broker_of_which_a_new_nameserver_has_not_heard_stays_in_the_route(reason: str, is_kept: bool) -> None:
    half = data(("a", {0: "h:1"}, 1, 1, 6))
    half.absent_brokers = [AbsentBroker("b", "c1", reason), AbsentBroker("c", "c1", UNHEARD)] if reason else None
    known, new = make_route("t", WHOLE), make_route("t", half)
    route = with_unheard(new, known)
    if is_kept:
        assert (route.readable, route.writable, dict(route.brokers)) == (
            known.readable, known.writable, dict(known.brokers),
        )  # fmt: skip
        assert dict(route.writable_at) == dict(known.writable_at)
        assert [one.broker_name for one in route.absent] == ["c"]
        # Once more, as often as the NameServer says so; and until the address is known to be wrong.
        assert with_unheard(new, route) == route
        assert with_unheard(new, route.without("b", "h:2").without("b", "h:3")) is new
    else:
        assert route is new
    assert with_unheard(new, None) is new


def test_absent_brokers_are_named_with_a_reason() -> None:
    text = absent_text([AbsentBroker("b", "c1", LOST, has_topic=True), AbsentBroker("c", "c1", "strange")])
    assert text == (
        "broker b has queues and is away (its connection ended, or it was silent),"
        " broker c may have queues and is away (strange)"
    )
