"""Consumers of the SDK at a master and its slave: reads go on without the master, and nothing is skipped or lost."""

import pytest
import trio

from scripts.daemons import free_port
from skylark import Admin, Producer, PullConsumer, PullStatus
from skylark.broker.registration import registrar as registrar_module
from skylark.broker.replication import slave_sync
from skylark.mqcommon.errors import BrokerError, RouteNotFound, SkylarkError
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.offsets import QUERY_CONSUMER_OFFSET
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.consumer import offsets, replicas
from skylark.sdk.consumer.reader import PullResult
from tests.broker.replication.sets import SLAVE, Running, broker, namesrv
from tests.support.waiting import DEADLINE_S, until

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar_module, "MASTERLESS_S", 0.05)
    monkeypatch.setattr(slave_sync, "RETRY_S", 0.05)
    monkeypatch.setattr(replicas, "PROBE_INTERVAL_S", 0.02)
    monkeypatch.setattr(replicas, "MAX_PAUSE_S", 0.02)
    monkeypatch.setattr(offsets, "RETRY_S", 0.02)


async def send(namesrv_addr: str, numbers: range) -> None:
    """Send as soon as there is a master."""
    async with Producer(namesrv_addr) as producer:

        async def is_there() -> bool:
            try:
                return QUEUE in await producer.queues("T")
            except SkylarkError:
                return False

        await until(is_there, "a master in the route")
        for number in numbers:
            await producer.send(Message("T", b"%d" % number), queue=QUEUE)


class Reader:
    """Reads one queue from its beginning, and commits as it goes."""

    def __init__(self, consumer: PullConsumer) -> None:
        self.consumer = consumer
        self.bodies: list[bytes] = []
        self.read_at: list[int] = []

    async def read(self, end: int, *, max_count: int = 5) -> None:
        await until(self._is_there, "the topic in the route")
        offset = len(self.bodies)
        while offset < end:
            result = await self.consumer.pull(QUEUE, offset, max_count=max_count, wait_ms=500)
            assert result.next_offset == offset + len(result.messages)
            if result.messages:
                assert result.messages[0].queue_offset == offset
                self.read_at.append(result.broker_id)
                self.bodies += [message.body for message in result.messages]
            offset = result.next_offset
            await self.consumer.commit_offset(QUEUE, offset)

    async def _is_there(self) -> bool:
        try:
            return QUEUE in await self.consumer.message_queues("T")
        except RouteNotFound:
            return False


def bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def has_committed(running: Running, offset: int) -> bool:
    """Whether that is what the broker itself has of the group."""
    ext = {"consumerGroup": "g", "topic": "T", "queueId": 0, "setZeroIfNotFound": False}
    answer = await running.client.invoke(running.addr, Command(QUERY_CONSUMER_OFFSET.code, ext))
    return answer.ext is not None and int(answer.ext.get("offset", -1)) == offset


async def test_reads_go_on_at_the_slave_and_nothing_is_skipped_on_the_masters_return() -> None:
    with trio.fail_after(DEADLINE_S):
        async with (
            namesrv() as names,
            broker(namesrv_addr=names, **SLAVE) as slave,
            broker(namesrv_addr=names) as master,
            PullConsumer(names, group="g") as consumer,
        ):
            await send(names, range(30))
            await slave.has("T", 30)
            reader = Reader(consumer)
            await reader.read(10)
            assert set(reader.read_at) == {0}
            await until(lambda: has_committed(slave, 10), "the slave has the offset")
            left = master.kill()
            await reader.read(30)
            assert reader.read_at[-1] == 1
            assert await consumer.max_offset(QUEUE) == 30
            assert await consumer.committed_offset(QUEUE) == 30  # kept by the consumer
            port = int(master.addr.rpartition(":")[2])
            async with broker(left, namesrv_addr=names, listen_port=port, ha_listen_port=free_port()) as again:
                await until(lambda: has_committed(again, 30), "what was kept is committed")
                await send(names, range(30, 50))
                await reader.read(50)
                await until(lambda: has_committed(slave, 50), "the slave has the new offset")
                assert reader.read_at[-1] == 0
                assert reader.bodies == bodies(50)


async def test_a_slave_that_is_behind_makes_readers_wait_for_the_master() -> None:
    with trio.fail_after(DEADLINE_S):
        async with namesrv() as names, broker(namesrv_addr=names) as master:
            async with broker(namesrv_addr=names, **SLAVE) as slave:
                await send(names, range(10))
                await slave.has("T", 10)
                copied = slave.kill()
            async with PullConsumer(names, group="g") as consumer:
                await send(names, range(10, 20))
                reader = Reader(consumer)
                await reader.read(20)
                left = master.kill()
                async with broker(copied, namesrv_addr=names, **SLAVE):
                    behind = await _answer_of_a_slave(consumer, 20)
                    assert (behind.status, behind.next_offset) == (PullStatus.NO_NEW_MESSAGE, 20)
                    assert behind.max_offset == 10
                    # Who comes anew finds what the slave has.
                    again = await consumer.pull(QUEUE, 0, max_count=100)
                    assert [message.body for message in again.messages] == bodies(10)
                    port = int(master.addr.rpartition(":")[2])
                    async with broker(left, namesrv_addr=names, listen_port=port, ha_listen_port=free_port()):
                        await send(names, range(20, 25))
                        await reader.read(25)
                        assert reader.bodies == bodies(25)


async def _answer_of_a_slave(consumer: PullConsumer, offset: int) -> PullResult:
    found: list[PullResult] = []

    async def answered() -> bool:
        try:
            found.append(await consumer.pull(QUEUE, offset))
        except SkylarkError:  # until its route is known
            return False
        return found[-1].broker_id == 1

    await until(answered, "an answer of the slave")
    return found[-1]


async def test_a_topic_is_at_the_slave_as_soon_as_it_is_made() -> None:
    with trio.fail_after(DEADLINE_S):
        async with (
            namesrv() as names,
            broker(namesrv_addr=names) as master,
            broker(namesrv_addr=names, **SLAVE) as slave,
            Admin(names) as admin,
        ):

            async def is_at_the_slave() -> bool:
                try:
                    return (await admin.topic_config(slave.addr, "T")).write_queue_nums == 3
                except SkylarkError:
                    return False

            await admin.create_topic(master.addr, TopicConfig("T", 3, 3))
            await until(is_at_the_slave, "the topic is copied")
            with pytest.raises(BrokerError, match="slave"):
                await admin.create_topic(slave.addr, TopicConfig("U", 3, 3))
