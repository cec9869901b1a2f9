"""Messages with a time of delivery and their recall, against a broker of ours in this process."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from mqcommon.errors import BrokerError, InvalidArgument
from mqcommon.message.ids import RecallHandle
from sdk import Message, Producer, PullConsumer, blocking
from sdk.producer.timed import timed
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
