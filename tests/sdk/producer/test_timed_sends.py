"""Messages with a time of delivery and their recall, against a broker of ours in this process."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from skylark import Message, Producer, PullConsumer, SendResult, blocking
from skylark.mqcommon.errors import BrokerError, InvalidArgument, SendFailed
from skylark.mqcommon.message.ids import RecallHandle
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE_V2
from skylark.sdk.producer.timed import timed
from tests.sdk.consumer.push_cluster import push_cluster
from tests.support.in_process import Servers
from tests.support.waiting import until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Servers]:
    async with push_cluster(tmp_path, timer_precision_ms=100) as made:
        yield made


async def test_messages_come_at_their_time_and_not_when_they_are_recalled(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver) as consumer:
        (queue,) = await producer.queues("one")
        soon = datetime.now(UTC) + timedelta(milliseconds=700)
        gone = await producer.send(Message("one", b"gone"), delay=timedelta(seconds=1))
        assert RecallHandle.decode(gone.recall_handle).unique_key == gone.msg_id
        assert await producer.recall("one", gone.recall_handle) == gone.msg_id
        plain = await producer.send(Message("one", b"plain"))
        assert plain.recall_handle == ""
        await producer.send(Message("one", b"first", tags="a", properties={"mine": "1"}), deliver_at=soon)
        await producer.send(Message("one", b"last"), queue=queue, delay=timedelta(milliseconds=1_200))

        async def bodies() -> list[bytes]:
            return [message.body for message in (await consumer.pull(queue, 0, wait_ms=0)).messages]

        async def last_came() -> bool:
            return b"last" in await bodies()

        await until(last_came, "the last one is delivered")
        assert await bodies() == [b"plain", b"first", b"last"]
        first = (await consumer.pull(queue, 1)).messages[0]
        assert (first.tags, first.properties["mine"]) == ("a", "1")
        assert first.store_timestamp >= soon.timestamp() * 1000 - 1
        with pytest.raises(BrokerError, match="timestamp invalid"):
            await producer.recall("one", gone.recall_handle)


async def test_handles_that_no_send_returned(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer:
        with pytest.raises(InvalidArgument, match="which no send returned"):
            await producer.recall("one", "junk")
        with pytest.raises(InvalidArgument, match="of a message of topic 't'"):
            await producer.recall("one", RecallHandle("t", "broker-a", 1, "k").encode())


@pytest.mark.parametrize("is_ours", [True, False])
async def test_waiting_sends_become_a_batch_at_a_broker_that_takes_it(
    cluster: Servers, monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    """RocketMQ's brokers would not see the times in a batch, so they get single messages."""
    if not is_ours:
        monkeypatch.setattr(RemotingClient, "greets_with", lambda *_: False)
    results: dict[int, SendResult] = {}
    soon = datetime.now(UTC) + timedelta(milliseconds=900)

    async def send(producer: Producer, number: int) -> None:
        body = b"%d" % number
        if number % 3 == 0:
            results[number] = await producer.send(Message("one", body, delay_level=1, tags="a"))
        elif number % 3 == 1:
            results[number] = await producer.send(Message("one", body), deliver_at=soon)
        else:
            results[number] = await producer.send(Message("one", body), delay=timedelta(milliseconds=900))

    async with Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver) as consumer:
        await send(producer, 0)
        codes: list[int] = []
        submit = producer.remoting.submit

        def noted(addr: str, command: Command, *others: Any) -> None:
            codes.append(command.code)
            submit(addr, command, *others)

        monkeypatch.setattr(producer.remoting, "submit", noted)
        async with trio.open_nursery() as nursery:
            for number in range(1, 60):
                nursery.start_soon(send, producer, number)
        singles, batches = codes.count(SEND_MESSAGE_V2.code), codes.count(SEND_BATCH_MESSAGE.code)
        assert (batches > 0 and singles < 59) if is_ours else (singles, batches) == (59, 0)
        for number in (4, 5):
            assert await producer.recall("one", results[number].recall_handle) == results[number].msg_id
        assert not results[3].recall_handle
        assert len({result.physical_offset for result in results.values()}) == 60
        (queue,) = await producer.queues("one")

        async def bodies() -> set[bytes]:
            return {message.body for message in (await consumer.pull(queue, 0, max_count=64, wait_ms=0)).messages}

        expected = {b"%d" % number for number in range(60) if number not in (4, 5)}

        async def all_came() -> bool:
            return await bodies() == expected

        await until(all_came, "all are delivered that were not recalled")


async def test_one_time_that_is_too_far_away_hurts_no_other_message(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer:
        await producer.send(Message("one", b"first"), delay=timedelta(minutes=1))
        tickets = [
            producer.send_nowait(Message("one", b"x"), delay=timedelta(days=4 if number == 7 else 1))
            for number in range(20)
        ]
        for number, ticket in enumerate(tickets):
            if number == 7:
                with pytest.raises(SendFailed, match="timerMaxDelaySec"):
                    await ticket
            else:
                assert (await ticket).recall_handle


async def test_a_time_that_is_too_far_away_says_what_to_do(cluster: Servers) -> None:
    async with Producer(cluster.nameserver) as producer:
        with pytest.raises(Exception, match="timerMaxDelaySec"):
            await producer.send(Message("one", b""), delay=timedelta(days=4))


async def test_blocking(cluster: Servers) -> None:
    def use() -> str:
        with blocking.Producer(cluster.nameserver) as producer:
            result = producer.send(Message("one", b"x"), delay=timedelta(minutes=1))
            return producer.recall("one", result.recall_handle)

    assert await trio.to_thread.run_sync(use)


NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def test_times_are_properties_in_milliseconds_rounded_up() -> None:
    message = Message("t", b"x", tags="a")
    at = timed(message, NOON + timedelta(microseconds=1), None)
    assert at.properties == {"TAGS": "a", "TIMER_DELIVER_MS": str(int(NOON.timestamp()) * 1000 + 1)}
    assert timed(message, None, timedelta(microseconds=1500)).properties == {"TAGS": "a", "TIMER_DELAY_MS": "2"}
    assert message.properties == {"TAGS": "a"}, "the user's message stays as it is"


@pytest.mark.parametrize(
    ("deliver_at", "delay", "error", "said"),
    [
        (NOON, timedelta(1), InvalidArgument, "give one of them"),
        (NOON.replace(tzinfo=None), None, InvalidArgument, "has no time zone"),
        (1_700_000_000, None, TypeError, "deliver_at must be a datetime"),
        (None, 5, TypeError, "delay must be a timedelta"),
        (None, timedelta(seconds=-1), InvalidArgument, "must not be negative"),
    ],
)
def test_wrong_arguments(deliver_at: Any, delay: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        timed(Message("t"), deliver_at, delay)


def test_a_delay_level_and_a_time() -> None:
    with pytest.raises(InvalidArgument, match="has a delay_level"):
        timed(Message("t", delay_level=3), NOON, None)
