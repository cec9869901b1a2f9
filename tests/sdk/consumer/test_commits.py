"""Offsets are the master's; while it is away they wait here."""

import pytest

from mqcommon.errors import BrokerError, RouteNotFound
from sdk.consumer import commits, replicas
from sdk.consumer.pull import PullConsumer
from tests.sdk.consumer.sets import broker_set, until
from tests.sdk.fakes import queue


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "PROBE_INTERVAL_S", 0.005)
    monkeypatch.setattr(replicas, "MAX_PAUSE_S", 0.005)
    monkeypatch.setattr(commits, "RETRY_S", 0.005)


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
