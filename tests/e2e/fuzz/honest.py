"""Clients whose answers must stay right, whatever others do to the daemons that they share."""

from collections import Counter
from collections.abc import Awaitable
from typing import TypeVar

import trio

from skylark import Admin, Message, Producer, PullConsumer
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.load import Acked

TOPIC = "honest"
GROUP = "honest-group"
QUEUES = 4
# So often this process looks whether it gets its share of the machine.
LOOK_S = 0.01

T = TypeVar("T")


class Honest:
    """One message after the other, each read back; routes, offsets and options asked for meanwhile."""

    def __init__(self, nameserver: str, broker: str) -> None:
        self._nameserver = nameserver
        self._broker = broker
        self.acked: list[Acked] = []
        self._stored: Counter[MessageQueue] = Counter()
        #: The longest wait for one answer, and how long this process itself stood still at the most meanwhile.
        self.worst_s = self.stood_still_s = 0.0

    async def until_cancelled(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            await self._ask()

    async def _look(self) -> None:
        """Measure how long this process waits for the processor, which is no daemon's fault."""
        while True:
            with trio.move_on_after(LOOK_S) as look:
                await trio.sleep_forever()
            self.stood_still_s = max(self.stood_still_s, trio.current_time() - look.deadline)

    async def _ask(self) -> None:
        async with (
            Producer(self._nameserver, retries=0) as producer,
            PullConsumer(self._nameserver, group=GROUP) as consumer,
            Admin(self._nameserver) as admin,
        ):
            while True:
                await self._once(producer, consumer, admin)

    async def _timed(self, answer: Awaitable[T]) -> T:
        started = trio.current_time()
        got = await answer
        self.worst_s = max(self.worst_s, trio.current_time() - started)
        return got

    async def _once(self, producer: Producer, consumer: PullConsumer, admin: Admin) -> None:
        body = b"honest/%d" % len(self.acked)
        timed = self._timed
        result = await timed(producer.send(Message(TOPIC, body, tags="tag", keys=body.decode())))
        queue, offset = result.queue, result.queue_offset
        self.acked.append((queue, offset, body))
        self._stored[queue] += 1
        pulled = await timed(consumer.pull(queue, offset, max_count=1))
        assert [message.body for message in pulled.messages] == [body]
        assert await timed(consumer.max_offset(queue)) == self._stored[queue]
        await timed(consumer.commit_offset(queue, offset + 1))
        assert await timed(consumer.committed_offset(queue)) == offset + 1
        route = await timed(admin.topic_route(TOPIC))
        assert [(data.broker_name, data.write_queue_nums) for data in route.queue_datas] == [(self._broker, QUEUES)]


def topic() -> TopicConfig:
    return TopicConfig(TOPIC, QUEUES, QUEUES)
