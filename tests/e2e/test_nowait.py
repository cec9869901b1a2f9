"""kill -9 of the broker under `send_nowait` with full buffers: every ticket ends once, and says the truth."""

import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import trio

from skylark import BufferFull, Message, Producer, SendFailed, Ticket
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.load import BODY_BYTES, Acked, check_acknowledged, check_order, stored
from tests.support.daemons import make_topic, running, start, until_route
from tests.support.waiting import until

TOPIC = "nowait"
QUEUES = 4
SENDERS = 4
BUFFER = 3_000
TIMEOUT_MS = 2_000
# How many messages a sender queues before others may run.
AT_ONCE = 50


class NowaitLoad:
    """Senders that never wait for an acknowledgement; half of them keep the order of their messages."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.sent: list[Ticket] = []
        self.ends: Counter[int] = Counter()
        self.acked: list[Acked] = []
        self.failures: list[SendFailed] = []
        self.times_full = 0
        self.is_stopping = False

    async def send(self, sender: int) -> None:
        number = 0
        while not self.is_stopping:
            body = f"load/{sender}/{number}".encode().ljust(BODY_BYTES)
            message = Message(TOPIC, body, sharding_key=f"key-{sender}" if sender % 2 else None)
            try:
                self.sent.append(self._producer.send_nowait(message, on_delivery=self._ended))
            except BufferFull:
                self.times_full += 1
                await self._producer.room()
                continue
            number += 1
            if number % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    async def more(self, count: int) -> None:
        """Wait until ``count`` more messages are acknowledged."""
        wanted = len(self.acked) + count
        await until(lambda: len(self.acked) >= wanted, f"{count} more are acknowledged")

    async def full_and_failing(self) -> None:
        """Wait until the buffer is full, and sends fail."""
        full, failed = self.times_full, len(self.failures)
        await until(
            lambda: self.times_full > full and len(self.failures) > failed, "the buffer is full, and sends fail"
        )

    def _ended(self, ticket: Ticket) -> None:
        self.ends[id(ticket)] += 1
        try:
            result = ticket.result()
        except SendFailed as error:
            self.failures.append(error)
        else:
            self.acked.append((result.queue, result.queue_offset, ticket.message.body))


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.nightly)])
async def test_every_ticket_ends_once_and_says_the_truth(tmp_path: Path, seed: int, rounds: int) -> None:
    random = Random(seed)
    async with running(tmp_path, options=()) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, QUEUES, QUEUES))
        (broker,) = cluster.brokers
        # A send that gets no answer is not tried again: so no message is stored twice, and keys keep their order.
        options = {"retries": 0, "buffer_count": BUFFER, "send_timeout_ms": TIMEOUT_MS}
        async with Producer(cluster.nameserver, **options) as producer:
            load = NowaitLoad(producer)
            async with trio.open_nursery() as nursery:
                for sender in range(SENDERS):
                    nursery.start_soon(load.send, sender)
                for _ in range(rounds):
                    await load.more(random.randrange(1, 5_000))
                    broker.kill()
                    await load.full_and_failing()
                    await start(broker)
                    await until_route(cluster, TOPIC, [broker.name])
                await load.more(1)
                load.is_stopping = True
            await producer.flush()
        assert load.ends == Counter(map(id, load.sent))
        assert len(load.acked) + len(load.failures) == len(load.sent)
        found = await stored(cluster.nameserver, TOPIC)
        check_acknowledged(load.acked, found)
        all_bodies = [body for bodies in found.values() for body in bodies]
        assert len(set(all_bodies)) == len(all_bodies)
        check_order({queue: [body for body in bodies if _is_keyed(body)] for queue, bodies in found.items()})
        sent = {ticket.message.body for ticket in load.sent}
        assert set(all_bodies) <= sent
        sys.stdout.write(
            f"{len(load.sent)} tickets: {len(load.acked)} acknowledged, all there; {len(load.failures)} failed; "
            f"the buffer was full {load.times_full} times\n"
        )


def _is_keyed(body: bytes) -> bool:
    return int(body.split(b"/")[1]) % 2 == 1
