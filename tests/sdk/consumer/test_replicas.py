"""Reads go on without the master, come back to it, and nothing is skipped because a slave lacks it."""

import logging
from functools import partial

import pytest
import trio

from skylark.mqcommon.errors import ConnectFailed
from skylark.remoting.protocol.command import Command
from skylark.sdk import suspects
from skylark.sdk.consumer import reader, replicas
from skylark.sdk.consumer.reader import PullStatus
from tests.sdk.consumer.sets import broker_set
from tests.sdk.fakes import FakeBroker, queue, serving, until
from tests.support.waiting import DEADLINE_S


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "PROBE_INTERVAL_S", 0.005)
    monkeypatch.setattr(replicas, "MAX_PAUSE_S", 0.005)
    monkeypatch.setattr(reader, "BEHIND_S", 0.005)


async def test_reads_go_on_at_the_slave_and_come_back(caplog: pytest.LogCaptureFixture) -> None:
    async with broker_set() as brokers:
        brokers.put(b"a", b"b", b"c", b"d")
        consumer = brokers.consumer
        assert (await consumer.pull(queue(), 0, max_count=1)).broker_id == 0
        brokers.master.stop()
        second = await consumer.pull(queue(), 1, max_count=1)
        assert (second.messages[0].body, second.broker_id) == (b"b", 1)
        third = await consumer.pull_bytes(queue(), 2, max_count=1)
        assert (third.data, third.broker_id) == (brokers.slave.queues["t", 0][2], 1)
        await brokers.start(0)
        asked = len(brokers.master.asked(11))
        await until(lambda: "answers again" in caplog.text)
        assert (await consumer.pull(queue(), 3)).broker_id == 0
        assert len(brokers.master.asked(11)) == asked + 1
    assert caplog.text.count("is avoided until it answers") == 1


async def test_a_frozen_master_costs_one_timeout_not_one_a_pull() -> None:
    async with broker_set(timeout_ms=2_000) as brokers:
        brokers.put(b"a", b"b", b"c")
        brokers.master.on(11, lambda request: None)
        brokers.master.on(30, lambda request: None)
        for offset in range(3):
            assert (await brokers.consumer.pull(queue(), offset, max_count=1)).broker_id == 1
        assert len(brokers.master.asked(11)) == 1
        # It melts.
        brokers.master.on(11, FakeBroker._pull.__get__(brokers.master))
        brokers.master.on(30, lambda request: {"offset": 3})
        with trio.fail_after(DEADLINE_S):
            while (await brokers.consumer.pull(queue(), 0)).broker_id != 0:
                pass


async def test_a_slave_that_is_behind_moves_no_reader(caplog: pytest.LogCaptureFixture) -> None:
    async with broker_set() as brokers:
        brokers.put(b"a")
        brokers.master.put("t", 0, b"b", b"c")
        assert (await brokers.consumer.pull(queue(), 0)).next_offset == 3
        brokers.master.stop()
        for _ in range(3):  # it answers 21, and that its queue ends at 1
            waiting = await brokers.consumer.pull(queue(), 3, wait_ms=10)
            assert (waiting.status, waiting.next_offset) == (PullStatus.NO_NEW_MESSAGE, 3)
            assert (waiting.max_offset, waiting.broker_id) == (1, 1)
        brokers.master.put("t", 0, b"d")
        await brokers.start(0)
        with trio.fail_after(DEADLINE_S):
            while not (found := await brokers.consumer.pull(queue(), 3, wait_ms=10)).messages:
                pass
        assert [message.body for message in found.messages] == [b"d"]
    assert caplog.text.count("waits for the master") == 1


async def test_what_a_slave_lacks_the_master_has() -> None:
    async with broker_set() as brokers:
        brokers.put(b"a", b"b", b"c")
        brokers.slave.min_offsets["t", 0] = 2  # it began at the master's last file
        brokers.master.suggest = 1
        found = []
        for offset in range(3):
            result = await brokers.consumer.pull(queue(), offset, max_count=1)
            found.append((result.messages[0].body, result.broker_id))
        assert found == [(b"a", 0), (b"b", 0), (b"c", 1)]
        brokers.master.stop()
        result = await brokers.consumer.pull(queue(), 0)
        assert (result.status, result.next_offset) == (PullStatus.NO_NEW_MESSAGE, 0)


async def test_another_slave_may_have_what_one_lacks() -> None:
    async with broker_set(slaves=2) as brokers:
        brokers.put(b"a")
        brokers.brokers[2].put("t", 0, b"b", b"c")
        brokers.master.stop()
        result = await brokers.consumer.pull(queue(), 2)
        assert ([message.body for message in result.messages], result.broker_id) == ([b"c"], 2)
        result = await brokers.consumer.pull(queue(), 4)
        assert (result.status, result.next_offset, result.broker_id) == (PullStatus.NO_NEW_MESSAGE, 4, 2)


async def test_a_slave_of_rocketmq_that_corrects_nobody() -> None:
    """The slave answers 20 (again, at once) and the offset of the request."""
    async with broker_set() as brokers:
        brokers.put(b"a")

        def behind(request: Command) -> Command:
            asked = int((request.ext or {})["queueOffset"])
            ext = {"minOffset": 0, "maxOffset": 1, "suggestWhichBrokerId": 0, "nextBeginOffset": asked}
            return request.respond(20, ext=ext)

        brokers.slave.on(11, behind)
        brokers.master.stop()
        result = await brokers.consumer.pull(queue(), 5, wait_ms=10)
        assert (result.status, result.next_offset) == (PullStatus.NO_NEW_MESSAGE, 5)


async def test_a_stream_goes_through_an_outage_without_a_gap() -> None:
    async with broker_set() as brokers:
        bodies = [b"%d" % number for number in range(10)]
        brokers.master.put("t", 0, *bodies)
        brokers.slave.put("t", 0, *bodies[:6])
        found: list[bytes] = []
        async with brokers.consumer.stream(queue(), 0, 10, max_count=2, wait_ms=10) as batches:
            async for batch in batches:
                found += [message.body for message in batch]
                if len(found) == 2:
                    brokers.master.stop()
                    brokers.slave.on(11, FakeBroker._pull.__get__(brokers.slave))
                if len(found) == 6:
                    await brokers.start(0)
        assert found == bodies


async def test_bounds_and_offsets_are_the_slaves_while_the_master_is_away() -> None:
    async with broker_set() as brokers:
        brokers.put(b"a", b"b")
        brokers.slave.min_offsets["t", 0] = 1
        brokers.slave.committed["g", "t", 0] = 1
        consumer = brokers.consumer
        assert await consumer.min_offset(queue()) == 0
        assert await consumer.committed_offset(queue()) is None
        brokers.master.stop()
        assert await consumer.max_offset(queue()) == 2
        assert await consumer.min_offset(queue()) == 1
        assert await consumer.search_offset(queue(), 5000) == 5
        assert await consumer.committed_offset(queue()) == 1
        assert not brokers.slave.asked(15)


async def test_a_master_that_comes_back_elsewhere_is_found_without_a_poll_of_the_routes() -> None:
    async with broker_set() as brokers, serving(FakeBroker()) as moved:
        assert isinstance(moved, FakeBroker)
        brokers.put(b"a")
        moved.put("t", 0, b"a", b"b")
        await brokers.consumer.pull(queue(), 0)
        brokers.master.stop()
        assert (await brokers.consumer.pull(queue(), 0)).broker_id == 1
        del brokers.addrs[0]
        await brokers.namesrv.wait_asked(105, len(brokers.namesrv.asked(105)) + 2)
        brokers.addrs[0] = moved.addr
        with trio.fail_after(DEADLINE_S):
            while not (found := await brokers.consumer.pull(queue(), 1)).messages:
                pass
        assert (found.messages[0].body, found.broker_id) == (b"b", 0)


async def test_a_master_that_left_the_routes_is_found_when_it_is_back() -> None:
    async with broker_set() as brokers:
        brokers.put(b"a")
        await brokers.consumer.pull(queue(), 0)
        addr = brokers.addrs.pop(0)
        brokers.master.stop()
        assert (await brokers.consumer.pull(queue(), 0)).broker_id == 1
        await brokers.start(0)
        await brokers.namesrv.wait_asked(105, len(brokers.namesrv.asked(105)) + 2)
        brokers.addrs[0] = addr
        with trio.fail_after(DEADLINE_S):
            while (await brokers.consumer.pull(queue(), 0)).broker_id != 0:
                pass


async def test_a_suspect_that_is_gone_for_good_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "DEPARTED_S", 0)
    async with broker_set() as brokers:
        brokers.put(b"a")
        brokers.master.stop()
        assert (await brokers.consumer.pull(queue(), 0)).broker_id == 1
        assert brokers.consumer._replicas._suspects.addrs
        del brokers.addrs[0]
        await until(lambda: not brokers.consumer._replicas._suspects.addrs)


async def test_when_nobody_answers_the_first_failure_is_told() -> None:
    async with broker_set(timeout_ms=100) as brokers:
        for broker in brokers.brokers:
            broker.stop()
        for _ in range(2):  # suspects are asked when there is nobody else
            with pytest.raises(ConnectFailed):
                await brokers.consumer.pull(queue(), 0)
            with pytest.raises(ConnectFailed):
                await brokers.consumer.max_offset(queue())


async def test_an_idle_slave_is_not_asked_in_a_rush(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(reader, "BEHIND_S", 0.05)
    async with broker_set() as brokers:
        brokers.put(b"a")
        brokers.master.stop()
        started = trio.current_time()
        await brokers.consumer.pull(queue(), 7, wait_ms=1_000)
        await brokers.consumer.pull(queue(), 7, wait_ms=1_000)
        assert trio.current_time() >= started + 0.05


async def test_a_slave_that_has_an_older_topic_of_the_name_is_not_read() -> None:
    """The topic was made again, which the slave has not copied yet. What it has would be taken for the new one."""
    async with broker_set() as brokers:
        for broker, stamp in ((brokers.master, 2_000), (brokers.slave, 1_000)):
            broker.on(11, partial(stamped, broker, stamp))
        brokers.put(b"0", b"1")
        consumer = brokers.consumer
        assert (await consumer.pull(queue(), 0, max_count=1)).created_ms == 2_000
        brokers.master.stop()
        found = await consumer.pull(queue(), 1)
        assert (found.status, found.messages, found.next_offset) == (PullStatus.NO_NEW_MESSAGE, [], 1)
        brokers.slave.on(11, partial(stamped, brokers.slave, 2_000))
        assert [message.body for message in (await consumer.pull(queue(), 1)).messages] == [b"1"]


def stamped(broker: FakeBroker, stamp: int, request: Command) -> Command | None:
    answer = broker._pull(request)
    if answer is not None:
        answer.ext = {**(answer.ext or {}), "topicCreatedMs": stamp}
    return answer
