"""Offsets are the master's; while it is away they wait here."""

import logging
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from skylark.mqcommon.errors import BrokerError, RequestTimeout, RouteNotFound
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.codes import ResponseCode
from skylark.sdk.client import LEAVE_TIMEOUT_S
from skylark.sdk.consumer import offsets, ownership, replicas
from skylark.sdk.consumer.offsets import Commits
from skylark.sdk.consumer.pull import PullConsumer
from skylark.sdk.position import Position
from skylark.sdk.routes import RouteCache, TopicRoute
from tests.sdk.consumer.sets import broker_set
from tests.sdk.fakes import queue, until


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "PROBE_INTERVAL_S", 0.005)
    monkeypatch.setattr(replicas, "MAX_PAUSE_S", 0.005)
    monkeypatch.setattr(offsets, "RETRY_S", 0.005)


async def test_the_newest_offset_of_each_queue_is_committed_when_the_master_is_back() -> None:
    async with broker_set() as brokers:
        consumer = brokers.consumer
        await consumer.commit_offset(queue(0), 1)
        brokers.master.stop()
        await consumer.commit_offset(queue(0), 2)
        await consumer.commit_offset(queue(0), 3)
        await consumer.commit_offset(queue(1), 7)
        assert await consumer.committed_offset(queue(0)) == 3
        assert brokers.master.committed == {("g", "t", 0): 1}
        await brokers.start(0)
        await until(lambda: brokers.master.committed == {("g", "t", 0): 3, ("g", "t", 1): 7})
        assert await consumer.committed_offset(queue(0)) == 3
        assert not brokers.slave.asked(15)


async def test_a_later_commit_is_not_undone_by_a_kept_one() -> None:
    async with broker_set() as brokers:
        brokers.master.stop()
        await brokers.consumer.commit_offset(queue(), 5)
        await brokers.start(0)
        await until(lambda: not brokers.consumer._replicas._suspects.addrs)
        await brokers.consumer.commit_offset(queue(), 6)
        await until(lambda: brokers.consumer._commits.kept(queue()) is None)
        assert brokers.master.committed == {("g", "t", 0): 6}


async def test_a_master_that_left_the_routes_is_waited_for_too() -> None:
    async with broker_set(slaves=0) as brokers:
        await brokers.consumer.commit_offset(queue(), 1)
        brokers.master.stop()
        await brokers.consumer.commit_offset(queue(), 2)
        route = brokers.namesrv.routes.pop("t")
        await brokers.namesrv.wait_asked(105, len(brokers.namesrv.asked(105)) + 2)
        await brokers.consumer.commit_offset(queue(), 3)
        brokers.namesrv.routes["t"] = route
        await brokers.start(0)
        await until(lambda: brokers.master.committed == {("g", "t", 0): 3})


async def test_the_last_chance_is_when_the_consumer_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with broker_set() as brokers:
        async with PullConsumer(brokers.namesrv.addr, group="h", heartbeat=False) as other:
            await other.message_queues("t")
            brokers.master.stop()
            await other.commit_offset(queue(), 2)
        assert "offsets of 1 queues could not be committed: the group h" in caplog.text


async def test_what_a_broker_refuses_is_no_outage() -> None:
    async with broker_set() as brokers:
        brokers.master.on(15, lambda request: request.respond(26, "Group g not exist!"))
        with pytest.raises(BrokerError, match="not exist"):
            await brokers.consumer.commit_offset(queue(), 2)
        with pytest.raises(RouteNotFound, match="broker-z"):
            await brokers.consumer.commit_offset(queue(0, broker_name="broker-z"), 2)
        assert brokers.consumer._commits.kept(queue()) is None


async def test_what_the_master_refuses_when_it_is_back_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async with broker_set() as brokers:
        brokers.master.stop()
        await brokers.consumer.commit_offset(queue(), 2)
        brokers.master.on(15, lambda request: request.respond(26, "Group g not exist!"))
        await brokers.start(0)
        await until(lambda: brokers.consumer._commits.kept(queue()) is None)
        assert "offset 2" in caplog.text and "not exist" in caplog.text


async def test_commits_of_one_queue_are_sent_one_after_another() -> None:
    """A slow one must not arrive after the next."""
    async with broker_set() as brokers:
        consumer, master = brokers.consumer, brokers.master
        await consumer.commit_offset(queue(0), 1)
        master.on(15, lambda request: None)  # takes them, and does not answer
        async with trio.open_nursery() as nursery:
            for offset in (2, 3):
                nursery.start_soon(consumer.commit_offset, queue(0), offset)
            nursery.start_soon(consumer.commit_offset, queue(1), 9)
            asked = await master.wait_asked(15, 3)
            await trio.testing.wait_all_tasks_blocked(0.01)
            sent = [int((request.ext or {})["commitOffset"]) for request in master.asked(15)]
            assert len(asked) == 3 and len({2, 3} & set(sent)) == 1 and 9 in sent
            nursery.cancel_scope.cancel()


async def test_a_forgotten_queue_is_not_committed_any_more() -> None:
    """Another member has it now, and has committed later offsets."""
    async with broker_set() as brokers:
        commits_of = brokers.consumer._commits
        await brokers.consumer.commit_offset(queue(), 1)
        brokers.master.stop()
        await brokers.consumer.commit_offset(queue(), 2)
        assert commits_of.kept(queue()) == Position(2)
        commits_of.forget(queue())
        assert commits_of.kept(queue()) is None
        await brokers.start(0)
        await until(lambda: not brokers.consumer._replicas._suspects.addrs)
        await commits_of.close()
        assert brokers.master.committed == {("g", "t", 0): 1}


async def test_a_commit_on_its_way_is_not_kept_for_a_queue_that_was_forgotten() -> None:
    async with broker_set() as brokers:
        commits_of = brokers.consumer._commits
        await brokers.consumer.commit_offset(queue(), 1)
        brokers.master.on(15, lambda request: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commits_of.commit, queue(), Position(2))
            await brokers.master.wait_asked(15, 2)
            commits_of.forget(queue())
            brokers.master.stop()
        assert commits_of.kept(queue()) is None


async def test_a_frozen_broker_holds_up_a_closing_consumer_once_and_only_for_a_moment(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer and a producer that close one after the other wait for it for a second at most."""
    assert offsets.CLOSING_S + ownership.CLOSING_S + 2 * LEAVE_TIMEOUT_S <= 1
    committed: list[MessageQueue] = []

    async def ask_master(mq: MessageQueue, ask: Any) -> None:
        await trio.sleep(3 if mq.broker_name == "frozen" else 0)
        committed.append(mq)

    async def route(topic: str) -> object:
        return TopicRoute("t", {"frozen": {}, "live": {}}, (), (), {})

    client = SimpleNamespace(instance=SimpleNamespace(route=route, routes=RouteCache()))
    kept = Commits(cast(Any, client), cast(Any, SimpleNamespace(ask_master=ask_master)), "g")
    async with trio.open_nursery() as nursery:
        # One is on its way already.
        nursery.start_soon(kept.commit, MessageQueue("t", "frozen", 0), Position(1))
        await trio.testing.wait_all_tasks_blocked()
        kept.begin_close()
        started = trio.current_time()
        for number in range(20):
            await kept.commit(MessageQueue("t", "frozen", number), Position(2))
            await kept.commit(MessageQueue("t", "live", number), Position(2))
        await kept.close()
        assert trio.current_time() - started <= offsets.CLOSING_S
        assert committed == [MessageQueue("t", "live", number) for number in range(20)]
        nursery.cancel_scope.cancel()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "broker frozen did not answer" in line


@pytest.mark.parametrize("how", ["cancelled", "refused"])
async def test_a_later_commit_that_comes_to_nothing_does_not_lose_the_kept_offset(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    away, busy = RequestTimeout("a", 15, 3_000), BrokerError(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy")
    # What the master does with each commit: the first, a later one of the user, two retries.
    answers: list[Exception | None] = [away, None if how == "cancelled" else busy, busy, None]
    committed: list[MessageQueue] = []

    async def ask_master(mq: MessageQueue, ask: Any) -> None:
        await trio.sleep(0 if (error := answers.pop(0)) or not answers else 1)
        if error is not None:
            raise error
        committed.append(mq)

    async def route(topic: str) -> object:
        return TopicRoute("t", {"a": {}}, (MessageQueue("t", "a", 0),), (), {})

    async with trio.open_nursery() as nursery:
        client = SimpleNamespace(instance=SimpleNamespace(route=route, routes=RouteCache()), nursery=nursery)
        commits = Commits(cast(Any, client), cast(Any, SimpleNamespace(ask_master=ask_master)), "g")
        mq = MessageQueue("t", "a", 0)
        await commits.commit(mq, Position(2))
        with trio.move_on_after(offsets.RETRY_S / 2) as later, suppress(BrokerError):
            await commits.commit(mq, Position(3))
        assert later.cancelled_caught == (how == "cancelled")
        assert commits.kept(mq) == Position(2) and not committed
    assert committed == [mq] and commits.kept(mq) is None


async def away(mq: MessageQueue, ask: Any) -> None:
    raise RequestTimeout("a", 15, 3_000)


def route_of(*brokers: str, **stamps: int) -> TopicRoute:
    return TopicRoute("t", {name: {} for name in brokers}, (), (), {}, stamps=stamps)


@pytest.mark.parametrize("created_ms", [None, 1_000])
async def test_an_offset_is_kept_over_a_broker_that_leaves_the_route_only_if_it_can_be_told_from_another(
    created_ms: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(offsets, "RETRY_S", 1_000)
    routes, mq = RouteCache(), MessageQueue("t", "a", 0)
    routes.put(route_of("a", "b"))

    async def route(topic: str) -> TopicRoute | None:
        return routes.get(topic)

    async with trio.open_nursery() as nursery:
        client = SimpleNamespace(instance=SimpleNamespace(route=route, routes=routes), nursery=nursery)
        commits = Commits(cast(Any, client), cast(Any, SimpleNamespace(ask_master=away)), "g")
        await commits.commit(mq, Position(5, created_ms))
        assert commits.kept(mq) == Position(5, created_ms)
        routes.put(route_of("b"))
        # The queue is given up now, which commits once more.
        await commits.commit(mq, Position(6, created_ms))
        assert commits.kept(mq) == (Position(6, 1_000) if created_ms else None)
        routes.put(route_of("a", "b", a=1_000))
        assert commits.kept(mq) == (Position(6, 1_000) if created_ms else None)
        routes.put(route_of("a", "b", a=2_000))
        assert commits.kept(mq) is None
        nursery.cancel_scope.cancel()
    (line,) = [text for text in caplog.messages if "offset 6 of" in text]
    assert ("made again" in line) == (created_ms is not None)


async def test_a_commit_names_its_topic_and_what_is_refused_for_that_is_no_problem() -> None:
    problems: list[Exception | None] = []
    async with broker_set() as brokers:
        brokers.master.on(15, lambda request: request.respond(ResponseCode.PULL_OFFSET_MOVED, "another topic"))
        consumer = brokers.consumer
        await offsets.GroupOffsets(consumer._replicas, consumer._commits, "g", problems.append).save(
            {queue(): Position(5, 1_000)}
        )
        (sent,) = brokers.master.asked(15)
        assert int((sent.ext or {})["topicCreatedMs"]) == 1_000
        assert consumer._commits.kept(queue()) is None and problems == []
