"""A topic that is deleted and made again, and a broker that is replaced by an empty one: nothing new is skipped."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from skylark import Admin, ConsumeFrom, Producer, PullConsumer, PushConsumer
from skylark.broker.broker import Broker
from skylark.broker.meta.topics import Topics
from skylark.mqcommon.errors import BrokerError, RemotingError, RouteNotFound
from skylark.mqcommon.message.message import Message, MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.consumer import offsets
from skylark.sdk.consumer.reader import PullStatus
from tests.namesrv.peer import serve
from tests.sdk.fakes import until
from tests.support.in_process import small_broker, until_known

TOPIC, GROUP = "T", "g"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
OLD, NEW = 20, 40
NEW_BODIES = {b"new%d" % number for number in range(NEW)}


@dataclass
class Cluster:
    """A NameServer and broker-a, whose topic T has one queue; ``got`` are the bodies that a consumer got."""

    nursery: trio.Nursery
    nameserver: str
    home: Path
    admin: Admin
    addr: str = ""
    stores: int = 0
    got: list[bytes] = field(default_factory=list)

    async def start_broker(self) -> None:
        """Start the broker with an empty store."""
        self.stores += 1
        self._broker = small_broker(self.nameserver, self.home / f"store{self.stores}")
        self._stopped = trio.Event()
        self.addr = await self.nursery.start(self._run, self._broker, self._stopped)
        await self.make_topic()

    async def _run(self, broker: Broker, stopped: trio.Event, *, task_status: trio.TaskStatus[str]) -> None:
        await broker.run(task_status=task_status)
        stopped.set()

    async def stop_broker(self) -> None:
        self._broker.stop()
        await self._stopped.wait()

    async def replace_broker(self) -> None:
        """The broker stops, its directory is moved away, and an empty broker of its name starts."""
        await self.stop_broker()
        await self.start_broker()

    async def make_topic(self) -> None:
        await self.admin.create_topic(self.addr, TopicConfig(TOPIC, 1, 1))
        await until_known(self.admin, TOPIC)

    async def make_again(self) -> None:
        await self.admin.delete_topic_in_broker(self.addr, TOPIC)
        await self.make_topic()

    async def send(self, count: int, name: bytes) -> None:
        async with Producer(self.nameserver) as producer:
            for number in range(count):
                await producer.send(Message(TOPIC, b"%s%d" % (name, number)))

    async def committed(self) -> int | None:
        async with PullConsumer(self.nameserver, group=GROUP, heartbeat=False) as consumer:
            return await consumer.committed_offset(QUEUE)

    def take(self, message: MessageExt) -> None:
        """For handlers."""
        self.got.append(message.body)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(tmp_path) as made:
        yield made


@pytest.fixture
async def unstamped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """A cluster whose broker knows no creation stamps, as RocketMQ's brokers."""
    monkeypatch.setattr(Topics, "_new_stamp", lambda self: None)
    async with running(tmp_path) as made:
        yield made


@asynccontextmanager
async def running(home: Path) -> AsyncIterator[Cluster]:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            namesrv = await serve(nursery, home)
            async with Admin(namesrv.address) as admin:
                cluster = Cluster(nursery, namesrv.address, home, admin)
                await cluster.start_broker()
                yield cluster
                await cluster.stop_broker()
            nursery.cancel_scope.cancel()


# --- what reads for ever

Reading = Callable[[Cluster], Awaitable[None]]


async def push(cluster: Cluster, **more: Any) -> None:
    async with PushConsumer(
        cluster.nameserver, group=GROUP, subscriptions={TOPIC: "*"}, handler=cluster.take, commit_interval_ms=50, **more
    ):
        await trio.sleep_forever()


async def orderly(cluster: Cluster) -> None:
    await push(cluster, orderly=True)


async def broadcast(cluster: Cluster) -> None:
    beginning = ConsumeFrom.FIRST_OFFSET
    await push(cluster, broadcast=True, consume_from=beginning, local_offsets_dir=str(cluster.home / "offsets"))


async def poll(cluster: Cluster) -> None:
    async with PullConsumer(cluster.nameserver, group=GROUP) as consumer:
        consumer.assign([QUEUE])
        while True:
            with passing_refusals():
                cluster.got += [message.body for message in await consumer.poll(timeout_ms=100)]
                await consumer.commit()


async def stream(cluster: Cluster) -> None:
    async with PullConsumer(cluster.nameserver, group=GROUP) as consumer:
        batches = consumer.stream(QUEUE, 0)
        while True:
            with passing_refusals():
                async for batch in batches:
                    cluster.got += [message.body for message in batch]
                    await consumer.commit_offset(QUEUE, batches.next_offset)


async def arrow(cluster: Cluster) -> None:
    async with PullConsumer(cluster.nameserver, group=GROUP) as consumer:
        batches = consumer.arrow(QUEUE, 0, columns=["body"])
        while True:
            with passing_refusals():
                async for batch in batches:
                    cluster.got += batch.column("body").to_pylist()
                    await consumer.commit_offset(QUEUE, batches.next_offset)


async def pull(cluster: Cluster) -> None:
    offset = 0
    async with PullConsumer(cluster.nameserver, group=GROUP) as consumer:
        while True:
            with passing_refusals():
                result = await consumer.pull(QUEUE, offset, wait_ms=1_000)
                cluster.got += [message.body for message in result.messages]
                offset = result.next_offset
                await consumer.commit_offset(QUEUE, offset)


class passing_refusals:
    """There is no topic for a moment, or no broker."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return isinstance(error, BrokerError | RemotingError | RouteNotFound)


READINGS = [push, orderly, broadcast, poll, stream, arrow, pull]


async def read_over(cluster: Cluster, reading: Reading, change: Callable[[], Awaitable[None]]) -> None:
    """What is sent before and after ``change`` comes, and the group's offset is one of the new queue."""
    if reading is arrow:
        pytest.importorskip("pyarrow")
    await cluster.send(OLD, b"old")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reading, cluster)
        await until(lambda: len(cluster.got) >= OLD)
        await change()
        await cluster.send(NEW, b"new")
        await until(lambda: set(cluster.got) >= NEW_BODIES)
        while reading is not broadcast and await cluster.committed() != NEW:  # noqa: ASYNC110  it is behind a socket
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("reading", READINGS)
async def test_a_living_consumer_reads_a_topic_that_was_made_again_from_its_beginning(
    reading: Reading, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await read_over(cluster, reading, cluster.make_again)
    lines = [line for record in caplog.records if "reading goes on" in (line := record.getMessage())]
    assert lines == [f"{QUEUE}: the topic was deleted and made again, reading goes on at offset 0, not {OLD}"]


@pytest.mark.parametrize("reading", [push, orderly, poll, stream])
async def test_a_living_consumer_reads_an_empty_broker_that_replaced_another_one(
    reading: Reading, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "RETRY_S", 0.01)
    await read_over(cluster, reading, cluster.replace_broker)


@pytest.mark.parametrize("change", ["make_again", "replace_broker"])
@pytest.mark.parametrize("reading", [orderly, poll])
async def test_without_stamps_the_end_of_the_queue_tells_or_the_places_in_the_log(
    reading: Reading, change: str, unstamped: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "RETRY_S", 0.01)
    # The log of the old broker is longer than the log of the new broker will be.
    await unstamped.admin.create_topic(unstamped.addr, TopicConfig("other", 1, 1))
    await until_known(unstamped.admin, "other")
    async with Producer(unstamped.nameserver) as producer:
        await producer.send(Message("other", bytes(100_000)))
    await read_over(unstamped, reading, getattr(unstamped, change))


async def test_a_pull_of_a_topic_that_was_made_again_is_told_until_the_caller_begins_it(cluster: Cluster) -> None:
    await cluster.send(4, b"old")
    async with PullConsumer(cluster.nameserver, group=GROUP) as consumer:
        assert (await consumer.pull(QUEUE, 0)).next_offset == 4
        await cluster.make_again()
        await cluster.send(NEW, b"new")
        with pytest.raises(BrokerError, match="offset 4 is of a topic T that was deleted"):
            await consumer.commit_offset(QUEUE, 4)
        for _ in range(2):  # the first answer may have been lost on its way to the caller
            told = await consumer.pull(QUEUE, 4)
            assert (told.status, told.next_offset, told.messages) == (PullStatus.OFFSET_ILLEGAL, 0, [])
            assert told.is_made_again and told.created_ms is not None
        # The caller may choose another offset of the new topic.
        assert (await consumer.pull(QUEUE, 5)).messages[0].body == b"new5"
        assert (await consumer.pull(QUEUE, 4)).messages[0].body == b"new4"
        await consumer.commit_offset(QUEUE, 5)


async def test_a_position_that_waits_in_a_paused_queue_is_no_offset_of_the_new_topic(cluster: Cluster) -> None:
    await cluster.send(4, b"old")
    async with PullConsumer(cluster.nameserver, group=GROUP) as consumer:
        consumer.assign([QUEUE])
        assert len(await consumer.poll(max_count=2)) == 2
        consumer.pause([QUEUE])
        await cluster.make_again()
        await cluster.send(NEW, b"new")
        await consumer.commit()
        assert await cluster.committed() is None
        consumer.resume([QUEUE])
        # What was fetched of the old topic comes first.
        found: list[bytes] = []
        while len(found) < 2 + NEW:
            found += [message.body for message in await consumer.poll()]
        assert found == [b"old2", b"old3", *[b"new%d" % number for number in range(NEW)]]


async def test_the_file_of_a_broadcasting_consumer_outlives_no_topic(cluster: Cluster) -> None:
    await cluster.send(4, b"old")
    for change, expected in ((cluster.make_again, {b"old%d" % n for n in range(4)}), (None, NEW_BODIES)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broadcast, cluster)
            await until(lambda expected=expected: set(cluster.got) >= expected)  # type: ignore[misc]
            nursery.cancel_scope.cancel()
        if change is not None:
            await change()
            await cluster.send(NEW, b"new")
