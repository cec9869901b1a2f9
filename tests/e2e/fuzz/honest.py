"""Clients whose answers must stay right, whatever others do to the daemons that they share."""

import trio

from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.topic import TopicConfig
from sdk import Admin, Message, Producer, PullConsumer
from tests.e2e.load import Acked

TOPIC = "honest"
GROUP = "honest-group"
QUEUES = 4


class Honest:
    """One message after the other, each read back; routes, offsets and options asked for meanwhile."""

    def __init__(self, nameserver: str, broker: str) -> None:
        self._nameserver = nameserver
        self._broker = broker
        self.acked: list[Acked] = []
        self.worst_s = 0.0

    async def until_cancelled(self) -> None:
        async with (
            Producer(self._nameserver, retries=0) as producer,
            PullConsumer(self._nameserver, group=GROUP) as consumer,
            Admin(self._nameserver) as admin,
        ):
            while True:
                started = trio.current_time()
                await self._once(producer, consumer, admin)
                self.worst_s = max(self.worst_s, trio.current_time() - started)

    async def _once(self, producer: Producer, consumer: PullConsumer, admin: Admin) -> None:
        body = b"honest/%d" % len(self.acked)
        result = await producer.send(Message(TOPIC, body, tags="tag", keys=body.decode()))
        self.acked.append((result.queue, result.queue_offset, body))
        pulled = await consumer.pull(result.queue, result.queue_offset, max_count=1)
        assert [message.body for message in pulled.messages] == [body]
        assert await consumer.max_offset(result.queue) == self._stored_in(result.queue)
        await consumer.commit_offset(result.queue, result.queue_offset + 1)
        assert await consumer.committed_offset(result.queue) == result.queue_offset + 1
        route = await admin.topic_route(TOPIC)
        assert [(data.broker_name, data.write_queue_nums) for data in route.queue_datas] == [(self._broker, QUEUES)]

    def _stored_in(self, queue: MessageQueue) -> int:
        return sum(1 for one, _, _ in self.acked if one == queue)


def topic() -> TopicConfig:
    return TopicConfig(TOPIC, QUEUES, QUEUES)
