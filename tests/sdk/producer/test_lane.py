"""How long sends go on, and how often they are tried, in virtual time."""

from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from mqcommon.errors import BrokerError, ConnectFailed, ConnectionLost, RequestTimeout, RouteNotFound, SendFailed
from mqcommon.message.queue import MessageQueue
from tests.sdk.producer.lanes import LOSING, OK, REFUSING, SILENT, Sender, a_lane, addr_of

QUEUE = MessageQueue("t", "a", 0)
LANES = pytest.mark.parametrize("queue", [None, QUEUE], ids=["any queue", "one queue"])


async def comes_back(sender: Sender, name: str, after_s: float) -> None:
    await trio.sleep(after_s)
    sender.cluster.acts[addr_of(name)] = OK


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
