"""How long sends go on, and how often they are tried, in virtual time."""

from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    FrameTooLarge,
    InvalidArgument,
    RequestTimeout,
    RouteNotFound,
    SendFailed,
    SkylarkError,
)
from skylark.mqcommon.message.ids import encode_host, offset_msg_id
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.channel import Answered
from skylark.remoting.protocol.command import Command
from skylark.sdk.producer import Producer
from skylark.sdk.producer.brokers import Faults, isolation_ms
from skylark.sdk.producer.lane import Alarm
from skylark.sdk.producer.pending import DEFERRED, PendingSend
from skylark.sdk.producer.routing import Turns, queue_of_key
from tests.sdk.fakes import Answer, FakeBroker, FakeNamesrv, serving
from tests.sdk.producer.lanes import LOSING, OK, REFUSING, SILENT, Sender, a_lane, addr_of
from tests.sdk.producer.test_producer import StoringBroker, bodies, two_brokers
from tests.support.waiting import DEADLINE_S

QUEUE = MessageQueue("t", "a", 0)
LANES = pytest.mark.parametrize("queue", [None, QUEUE], ids=["any queue", "one queue"])


async def comes_back(sender: Sender, name: str, after_s: float) -> None:
    await trio.sleep(after_s)
    sender.cluster.acts[addr_of(name)] = OK


async def test_a_batch_with_times_does_not_reach_another_broker_at_the_address(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker that took such batches was replaced by one of RocketMQ, which would deliver the messages at once."""
    async with a_lane("a") as sender:
        cluster = sender.cluster
        cluster.greeted.add("a:1")

        async def connect(addr: str, timeout_ms: float) -> None:
            await trio.lowlevel.checkpoint()
            cluster.greeted.clear()

        monkeypatch.setattr(cluster, "connected", lambda addr: not cluster.greeted)
        monkeypatch.setattr(cluster, "channel", connect)
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(sender.send, b"%d" % number, 3, DEFERRED)
        assert len(cluster.tries) == len(cluster.stored) == 20


@LANES
@pytest.mark.parametrize("act", [REFUSING, 2, 14, 1500, 215])
async def test_what_stored_nothing_is_tried_until_the_deadline(
    autojump_clock: MockClock, queue: MessageQueue | None, act: int
) -> None:
    async with a_lane("a", queue=queue, retries=0) as sender:
        sender.cluster.acts["a:1"] = act
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.send, b"x", 5)
            nursery.start_soon(comes_back, sender, "a", 4)
        assert sender.results[b"x"].tries > 2
        assert sender.cluster.stored == [("a:1", b"x")]


@LANES
@pytest.mark.parametrize("act", [REFUSING, 2, 14])
async def test_tries_of_a_broker_that_stays_away_pause(
    autojump_clock: MockClock, queue: MessageQueue | None, act: int
) -> None:
    async with a_lane("a", queue=queue) as sender:
        sender.cluster.acts["a:1"] = act
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(1_000):
                nursery.start_soon(sender.send, b"%d" % number)
        assert len(sender.errors) == 1_000
        tries = sender.cluster.tries_at("a")
        assert 5 < len(tries) < 40, "of all sends together"
        assert all(later - earlier < 1 for earlier, later in pairwise([*tries, started + 3]))
        for error in sender.errors.values():
            assert isinstance(error, SendFailed) and isinstance(error.__cause__, ConnectFailed | BrokerError)
        for ended_at in sender.ended_at.values():
            assert ended_at == pytest.approx(started + 3, abs=0.05)


@LANES
async def test_retries_bound_the_tries_that_may_have_stored(
    autojump_clock: MockClock, queue: MessageQueue | None
) -> None:
    for act, error in ((1, BrokerError), (LOSING, ConnectionLost), (SILENT, RequestTimeout)):
        async with a_lane("a", queue=queue, retries=2) as sender:
            sender.cluster.acts["a:1"] = act
            await sender.send(b"x")
            assert isinstance(sender.errors[b"x"].__cause__, error)
            tries = sender.cluster.tries_at("a")
            assert len(tries) == 3
            assert all(later > earlier + 0.01 for earlier, later in pairwise(tries)), "with pauses between them"


async def test_refusals_in_between_cost_none_of_them(autojump_clock: MockClock) -> None:
    async with a_lane("a", retries=1) as sender:
        sender.cluster.acts["a:1"] = LOSING
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.send, b"x", 5)
            await trio.sleep(0.002)
            sender.cluster.acts["a:1"] = REFUSING
            nursery.start_soon(comes_back, sender, "a", 3)
        assert sender.results[b"x"].tries > 3


async def test_a_last_try_without_an_answer_does_not_hide_what_the_broker_said(autojump_clock: MockClock) -> None:
    async with a_lane("a", retries=0) as sender:
        sender.cluster.acts["a:1"] = 14
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.send, b"x")
            await trio.sleep(2)
            sender.cluster.acts["a:1"] = SILENT
        error = sender.errors[b"x"]
        assert isinstance(error.__cause__, RequestTimeout)
        assert str(error.__cause__) in str(error) and "; before that a:1 answered code 14: not now" in str(error)


async def test_silent_brokers_share_the_time(autojump_clock: MockClock) -> None:
    async with a_lane("a", retries=3) as sender:
        sender.cluster.acts["a:1"] = SILENT
        started = trio.current_time()
        await sender.send(b"x", 8)
        assert len(sender.cluster.tries_at("a")) == 4
        assert sender.ended_at[b"x"] == pytest.approx(started + 8, abs=0.05)


@pytest.mark.parametrize("act", [1, 2, 3, 14, 16, 17, 215, 1500, REFUSING, LOSING])
async def test_what_one_broker_does_not_store_goes_to_another(autojump_clock: MockClock, act: int) -> None:
    async with a_lane("a", "b", "c") as sender:
        sender.cluster.acts["b:1"] = sender.cluster.acts["c:1"] = act
        for number in range(10):
            await sender.send(b"%d" % number)
        assert not sender.errors
        assert {addr for addr, _ in sender.cluster.stored} == {"a:1"}


@pytest.mark.parametrize("code", [3, 16, 17])
async def test_when_every_broker_refuses_the_send_fails_before_its_time_is_over(
    autojump_clock: MockClock, code: int
) -> None:
    async with a_lane(*"abcdef") as sender:
        sender.cluster.acts = dict.fromkeys(sender.cluster.acts, code)
        started = trio.current_time()
        await sender.send(b"x", 60)
        assert {addr for _, addr in sender.cluster.tries} == set(sender.cluster.acts)
        assert sender.ended_at[b"x"] < started + 5


async def test_one_master_dies_while_the_other_is_on_its_way_back(autojump_clock: MockClock) -> None:
    async with a_lane("a", "b") as sender:
        await sender.send(b"before")
        sender.cluster.acts["a:1"] = REFUSING
        for number in range(4):
            await sender.send(b"%d" % number)
        # The NameServer has forgotten a, which starts again; then b dies.
        sender.cluster.listed = ["b"]
        sender.cluster.list_again()
        sender.cluster.acts["b:1"] = REFUSING
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(sender.send, b"late %d" % number)
            await trio.sleep(1.5)
            sender.cluster.acts["a:1"] = OK
            sender.cluster.listed = ["a", "b"]
        assert not sender.errors and len(sender.results) == 25


@LANES
async def test_no_route_is_waited_for(autojump_clock: MockClock, queue: MessageQueue | None) -> None:
    async with a_lane("a", queue=queue) as sender:
        sender.cluster.listed = []
        sender.cluster.list_again()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.send, b"in time", 5)
            nursery.start_soon(sender.send, b"late", 1)
            await trio.sleep(2)
            assert isinstance(sender.errors[b"late"].__cause__, RouteNotFound)
            assert sender.cluster.refreshed < 20
            sender.cluster.listed = ["a"]
        assert b"in time" in sender.results


async def test_each_send_has_its_own_deadline(autojump_clock: MockClock) -> None:
    async with a_lane("a") as sender:
        sender.cluster.acts["a:1"] = REFUSING
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for timeout_s in (9, 1, 5, 2):
                nursery.start_soon(sender.send, b"%d" % timeout_s, timeout_s)
        for body, ended_at in sender.ended_at.items():
            assert ended_at == pytest.approx(started + int(body), abs=0.1)


@pytest.mark.parametrize("act", [1, 2, 16, REFUSING, LOSING])
async def test_order_is_kept_through_failures(autojump_clock: MockClock, act: int) -> None:
    async with a_lane("a", queue=QUEUE) as sender:
        sender.cluster.acts["a:1"] = act
        async with trio.open_nursery() as nursery:
            for number in range(3_000):
                nursery.start_soon(sender.send, b"%04d" % number, 5)
                if number % 1_000 == 999:
                    await trio.sleep(0.02)
            sender.cluster.acts["a:1"] = OK
        assert not sender.errors
        assert len(sender.added) == 3_000
        assert [body for _, body in sender.cluster.stored] == sender.added


async def test_it_rings_at_the_earliest_time_and_can_be_set_again(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    rung: list[float] = []
    alarm, start = Alarm(nursery, lambda: rung.append(trio.current_time())), trio.current_time()
    for seconds in (5, 3, 9, 3):
        alarm.at(start + seconds)
    await trio.sleep(20)
    assert rung == [start + 3], "later times are forgotten"
    alarm.at(start + 30)
    await trio.sleep(20)
    assert rung == [start + 3, start + 30]


async def test_a_time_that_has_passed_rings_at_once(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    rung = []
    Alarm(nursery, lambda: rung.append(1)).at(trio.current_time() - 1)
    await wait_all_tasks_blocked()
    assert rung == [1]
    assert not nursery.child_tasks


def queues(broker: str, count: int) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue("t", broker, number) for number in range(count))


@given(st.integers(1, 4), st.integers(1, 5), st.integers())
def test_every_queue_gets_its_turn(brokers: int, each: int, seed: int) -> None:
    at = {f"addr-{n}": queues(f"b{n}", each) for n in range(brokers)}
    turns = Turns(Random(seed))
    picked = [turns.next(at, lambda addr: True) for _ in range(brokers * each)]
    assert sorted(picked) == sorted((addr, queue) for addr, found in at.items() for queue in found)  # type: ignore


@given(st.lists(st.sets(st.sampled_from("abc"), min_size=1), min_size=1), st.integers())
def test_the_rounds_are_even_also_when_brokers_are_busy(free: list[set[str]], seed: int) -> None:
    """Of each broker all queues are used in turn, whichever brokers are left out meanwhile."""
    at = {name: queues(name, 3) for name in "abc"}
    turns = Turns(Random(seed))
    last: dict[str, int] = {}
    for names in free:
        found = turns.next({name: at[name] for name in sorted(names)}, lambda addr: True)
        assert found is not None and found[0] in names
        addr, queue = found
        assert queue.queue_id == (last[addr] + 1) % 3 if addr in last else True
        last[addr] = queue.queue_id


def test_new_processes_start_anywhere() -> None:
    """The first choice of many, each with a seed of its own, is spread over all queues."""
    at = {"a": queues("a", 4), "b": queues("b", 4)}
    first = Counter(Turns(Random(seed)).next(at, lambda addr: True) for seed in range(800))
    assert len(first) == 8
    assert min(first.values()) > 60 and max(first.values()) < 140


def test_brokers_that_failed_or_are_at_fault_come_last() -> None:
    at = {"a": queues("a", 2), "b": queues("b", 2)}
    turns = Turns(Random(0))
    for _ in range(10):
        assert turns.next(at, lambda addr: addr != "a")[0] == "b"  # type: ignore[index]
        assert turns.next(at, lambda addr: True, avoid=("b",))[0] == "a"  # type: ignore[index]
        assert turns.next(at, lambda addr: False) is not None, "when nothing is left, anything will do"
    assert turns.next({}, lambda addr: True) is None


def test_slow_brokers_are_left_alone_for_a_while() -> None:
    assert isolation_ms(549) == 0
    assert isolation_ms(550) == 2_000
    assert isolation_ms(20_000) == 30_000
    faults = Faults(Backoff(0.05, 0.5, Random(0)), {}, Random(0))
    faults.answered("a", 600, now_ms=1_000)
    assert not faults.usable("a", 2_999) and faults.usable("a", 3_000)
    assert faults.usable("b", 0)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["slow", "failed", "weak", "cleared", "suspect"]))))
def test_when_all_brokers_count_as_usable_each_of_them_is(events: list[tuple[str, str]]) -> None:
    suspects: dict[str, None] = {}
    faults = Faults(Backoff(0.05, 0.5, Random(0)), suspects, Random(0))
    assert faults.all_usable(0)
    for now_ms, (addr, event) in enumerate(events):
        if event == "slow":
            faults.answered(addr, 600, now_ms)
        elif event == "failed":
            faults.failed(addr, now_ms)
        elif event == "weak":
            faults.weak.answered_weakly(addr, now_ms)
        elif event == "suspect":
            suspects[addr] = None
        else:
            suspects.pop(addr, None)
            faults.cleared(addr)
            faults.weak.forget(addr)
        for later_ms in (now_ms, now_ms + 100, now_ms + 10_000):
            assert not faults.all_usable(later_ms) or all(faults.usable(each, later_ms) for each in "ab")
    # Nothing is known for ever but suspects and weak brokers.
    assert faults.all_usable(1e12) or suspects or faults.weak


def test_a_suspect_is_unusable_until_it_answers() -> None:
    suspects = {"a": None}
    faults = Faults(Backoff(0.05, 0.5, Random(0)), suspects, Random(0))
    faults.failed("a", 5.0)
    assert not faults.usable("a", 1e12)
    assert faults.rests_until("a") <= 55, "after that it is tried when nobody else is left"
    del suspects["a"]
    faults.cleared("a")
    assert faults.usable("a", 0)


def taking_sends(name: str) -> FakeBroker:
    broker = FakeBroker(name)
    broker.on(310, storing(broker))
    return broker


def storing(broker: FakeBroker) -> Answer:
    def store(request: Command) -> Command:
        where = offset_msg_id(encode_host("127.0.0.1", int(broker.addr.rpartition(":")[2])), 0)
        return request.respond(ext={"msgId": where, "queueId": (request.ext or {})["e"], "queueOffset": 0})

    return store


async def send_until_stored_by(producer: Producer, broker_name: str) -> None:
    while (await producer.send(Message("t", b"x"))).queue.broker_name != broker_name:
        await trio.lowlevel.checkpoint()


async def test_a_broker_that_left_its_route_is_used_again_when_it_is_back() -> None:
    namesrv, a, b = FakeNamesrv(), taking_sends("broker-a"), taking_sends("broker-b")
    async with serving(namesrv), serving(a), Producer(namesrv.addr) as producer:
        async with serving(b):
            namesrv.add("t", a, b)
            await send_until_stored_by(producer, "broker-b")
            del namesrv.routes["t"]
            namesrv.add("t", a)
        for _ in range(10):
            assert (await producer.send(Message("t", b"x"))).queue.broker_name == "broker-a"
        assert list(producer.brokers.suspects.addrs) == [b.addr]
        async with serving(b):
            del namesrv.routes["t"]
            namesrv.add("t", a, b)
            with trio.fail_after(DEADLINE_S):
                await send_until_stored_by(producer, "broker-b")
        assert producer.retried > 0


async def test_a_broker_that_left_in_good_order_is_used_again_when_it_is_back() -> None:
    namesrv, a, b = FakeNamesrv(), taking_sends("broker-a"), taking_sends("broker-b")
    async with serving(namesrv), serving(a), serving(b), Producer(namesrv.addr) as producer:
        namesrv.add("t", a, b)
        await send_until_stored_by(producer, "broker-b")
        del namesrv.routes["t"]
        namesrv.add("t", a)
        b.on(310, lambda request: request.respond(14, "stopping"))
        with trio.fail_after(DEADLINE_S):
            while list(producer.brokers.suspects.addrs) != [b.addr]:
                assert (await producer.send(Message("t", b"x"))).queue.broker_name == "broker-a"
        b.on(310, storing(b))
        del namesrv.routes["t"]
        namesrv.add("t", a, b)
        with trio.fail_after(DEADLINE_S):
            await send_until_stored_by(producer, "broker-b")


async def test_a_topic_that_got_fewer_queues_is_sent_to_with_its_new_route() -> None:
    namesrv, a = FakeNamesrv(), taking_sends("broker-a")
    stored = storing(a)

    def with_one_queue(request: Command) -> Command:
        if (queue_id := int((request.ext or {})["e"])) > 0:
            return request.respond(29, f"request queueId[{queue_id}] is illegal, TopicConfig Producer: 127.0.0.1")
        return stored(request)

    async with serving(namesrv), serving(a), Producer(namesrv.addr) as producer:
        namesrv.add("t", a, queues=8)
        await producer.send(Message("t", b"x"))
        a.on(310, with_one_queue)
        del namesrv.routes["t"]
        namesrv.add("t", a, queues=1)
        for _ in range(8):
            assert (await producer.send(Message("t", b"x"))).queue.queue_id == 0


QUEUES = pytest.mark.parametrize("queue", [None, MessageQueue("t", "a", 0)])


def add(sender: Sender, body: bytes) -> PendingSend:
    send = PendingSend(Message("t", body), None, 3, trio.lowlevel.current_task())
    sender.lane.add(send)
    return send


async def result_of(send: PendingSend) -> Any:
    return await trio.lowlevel.wait_task_rescheduled(send.abort)


@QUEUES
async def test_a_send_after_a_lone_one_is_submitted_before_other_tasks_run(
    autojump_clock: MockClock, queue: MessageQueue | None
) -> None:
    async with a_lane("a", queue=queue) as sender:
        await sender.send(b"first")
        for number in range(3):
            send = add(sender, b"%d" % number)
            assert len(sender.cluster.tries) == number + 2
            assert (await result_of(send)).tries == 1
        assert [body for _, body in sender.cluster.stored] == [b"first", b"0", b"1", b"2"]


async def test_sends_of_one_turn_become_a_batch(autojump_clock: MockClock) -> None:
    async with a_lane("a") as sender:
        await sender.send(b"first")
        for _ in range(3):
            before = len(sender.cluster.tries)
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(sender.send, b"%d" % number)
            # One may have left alone, before the others came.
            assert len(sender.cluster.tries) <= before + 2
        assert not sender.errors


@pytest.mark.parametrize("error", [FrameTooLarge(9, 8), ValueError("bad"), ConnectionLost("a:1")])
async def test_an_error_of_the_request_is_raised_in_its_sender(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async with a_lane("a") as sender:
        await sender.send(b"first")

        def submit(*_: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(sender.cluster, "submit", submit)
            with pytest.raises(ValueError if isinstance(error, ValueError) else SendFailed):
                await result_of(add(sender, b"second"))
        await sender.send(b"third")
        assert [body for _, body in sender.cluster.stored] == [b"first", b"third"]


async def test_a_cancelled_sender_leaves_the_lane_as_it_was(autojump_clock: MockClock) -> None:
    async with a_lane("a") as sender:
        await sender.send(b"first")
        with trio.CancelScope() as scope:
            scope.cancel()
            await result_of(add(sender, b"second"))
        assert scope.cancelled_caught
        await sender.send(b"third")
        # Of two requests in flight any may be stored first.
        assert sorted(body for _, body in sender.cluster.stored) == [b"first", b"second", b"third"]


async def test_a_request_that_fails_while_it_is_queued_is_sent_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it is one too many for the buffer of its connection, which is closed then."""
    async with a_lane("a") as sender:
        await sender.send(b"first")
        submit = sender.cluster.submit

        def overflow(addr: str, command: Command, timeout_ms: float, answered: Answered) -> None:
            monkeypatch.setattr(sender.cluster, "submit", submit)
            answered(ConnectionLost(addr))

        monkeypatch.setattr(sender.cluster, "submit", overflow)
        with trio.fail_after(60):
            await result_of(add(sender, b"second"))
        assert [body for _, body in sender.cluster.stored] == [b"first", b"second"]


def keyed(body: bytes, key: str = "order-1") -> Message:
    return Message("t", body, sharding_key=key)


async def test_each_way_to_send_takes_the_same_queue() -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        for number in range(20):
            key = f"order-{number}"
            mq = queue_of_key(await producer.queues("t"), key)
            assert (await producer.send(keyed(b"waited %d" % number, key))).queue == mq
            await producer.send_oneway(keyed(b"oneway %d" % number, key))
            broker = {"broker-a": a, "broker-b": b}[mq.broker_name]
            with trio.fail_after(DEADLINE_S):
                while (mq.queue_id, b"oneway %d" % number) not in broker.stored:
                    await trio.lowlevel.checkpoint()


async def test_batches_refuse_keys_since_they_go_to_all_queues() -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        with pytest.raises(InvalidArgument, match=r"messages\[1\] has a sharding key"):
            await producer.send_many("t", [Message("t", b"x"), keyed(b"y")])
        with pytest.raises(InvalidArgument, match=r"messages\[1\] has a sharding key"):
            await producer.send_many("t", [b"x", keyed(b"y")])
        assert bodies(a, b) == []


async def test_more_queues_are_used_once_the_route_has_them() -> None:
    async with serving(FakeNamesrv()) as names, serving(StoringBroker("broker-a")) as broker:
        assert isinstance(names, FakeNamesrv) and isinstance(broker, StoringBroker)
        names.add("t", broker, queues=1)
        async with Producer(names.addr) as producer:
            assert {(await producer.send(keyed(b"%d" % n, f"k{n}"))).queue.queue_id for n in range(20)} == {0}
            names.routes.clear()
            names.add("t", broker, queues=4)
            await producer._client.instance.refresh("t")
            queues = await producer.queues("t")
            for n in range(20):
                assert (await producer.send(keyed(b"%d" % n, f"k{n}"))).queue == queue_of_key(queues, f"k{n}")


async def test_an_ordered_topic_keeps_its_queues_while_a_broker_is_away() -> None:
    """Its messages fail or wait; they never go to another queue."""
    a, b = StoringBroker("broker-a"), StoringBroker("broker-b")
    async with serving(FakeNamesrv()) as names, serving(a):
        assert isinstance(names, FakeNamesrv)
        async with serving(b), Producer(names.addr, send_timeout_ms=10_000) as producer:
            names.add("t", a, b)
            names.routes["t"].order_topic_conf = "broker-a:2;broker-b:2"
            queues = await producer.queues("t")
            key = next(key for key in map(str, range(99)) if queue_of_key(queues, key).broker_name == "broker-b")
            await producer.send(keyed(b"before", key))
            b.stop()
            left = names.routes["t"].broker_datas.pop()
            await producer._client.instance.refresh("t")
            assert await producer.queues("t") == queues
            with pytest.raises(SendFailed):
                await producer.send(keyed(b"fails", key), timeout_ms=100)
            stored = trio.Event()

            async def wait() -> None:
                await producer.send(keyed(b"waits", key))
                stored.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await wait_all_tasks_blocked()
                async with serving(b):
                    names.routes["t"].broker_datas.append(left)
                    await stored.wait()
        assert bodies(a) == [] and bodies(b) == [b"before", b"waits"]


@pytest.mark.parametrize("one_by_one", [True, False])
async def test_a_send_that_comes_after_the_end_of_the_lane_fails_at_once(
    one_by_one: bool, autojump_clock: MockClock
) -> None:
    async with a_lane("a") as sender:
        if one_by_one:
            await sender.send(b"x")
    with trio.fail_after(10), pytest.raises(SkylarkError, match="the client was closed"):
        await sender.send(b"y")
