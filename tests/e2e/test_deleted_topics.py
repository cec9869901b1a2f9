"""kill -9 of a broker while it deletes a topic: the next start has ended that, or it has not begun."""

import sys
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import trio

from skylark import Admin, Message, Producer, PullConsumer
from skylark.mqcommon.errors import BrokerError, RemotingError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.load import bodies
from tests.support.daemons import make_topic, running, start, until_route
from tests.support.waiting import until

QUEUES = 100


@pytest.mark.parametrize("rounds", [1, pytest.param(30, marks=pytest.mark.nightly)])
async def test_a_kill_while_topics_are_deleted(tmp_path: Path, seed: int, rounds: int) -> None:
    random = Random(seed)
    ended = 0
    async with running(tmp_path) as cluster, Admin(cluster.nameserver) as admin:
        (broker,) = cluster.brokers
        files = cluster.home / broker.name / "consumequeue" / "T"
        for _ in range(rounds):
            await make_topic(cluster, TopicConfig("T", QUEUES, QUEUES))
            queues = [MessageQueue("T", broker.name, number) for number in range(QUEUES)]
            async with Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver) as consumer:
                for queue in queues:
                    await producer.send(Message("T", b"old"), queue=queue)
                await consumer.commit_offset(queues[0], 1)
            await until(lambda: files.exists() and len(list(files.iterdir())) == QUEUES, "a checkpoint")
            left = random.randrange(QUEUES)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_delete, admin, broker.addr)
                await until(lambda left=left: not files.exists() or len(list(files.iterdir())) <= left, "its files go")
                broker.kill()
            ended += not files.exists()
            await start(broker)
            # The mark was on disk before the first file went.
            assert "T" not in (await admin.all_topic_config(broker.addr)).topic_config_table
            assert not files.exists()
            await make_topic(cluster, TopicConfig("T", QUEUES, QUEUES))
            await until_route(cluster, "T", [broker.name])
            async with Producer(cluster.nameserver) as producer, PullConsumer(cluster.nameserver) as consumer:
                assert (await producer.send(Message("T", b"new"), queue=queues[0])).queue_offset == 0
                assert await bodies(consumer, queues[0], 0) == [b"new"]
                assert await consumer.committed_offset(queues[0]) in (None, 0, -1)
            await admin.delete_topic_in_broker(broker.addr, "T")
    sys.stdout.write(f"{rounds} kills, {rounds - ended} of them while files of queues were left\n")


async def _delete(admin: Admin, addr: str) -> None:
    with suppress(RemotingError, BrokerError):  # killed before its answer
        await admin.delete_topic_in_broker(addr, "T")
