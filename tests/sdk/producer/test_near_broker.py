"""Sends to a broker in the event loop of its producer, which answers at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import wait_all_tasks_blocked

from skylark import Message, Producer, Ticket
from skylark.mqcommon.message.batch import decode_batch
from skylark.remoting.net.in_process import InProcessListener
from skylark.remoting.net.server import Server
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE_V2
from skylark.sdk.client import ClientInstance, sharing
from tests.sdk.fakes import MAX_CODE, FakeNamesrv, serving
from tests.sdk.producer.test_producer import StoringBroker


@asynccontextmanager
async def near() -> AsyncIterator[tuple[StoringBroker, Producer]]:
    """A broker, and a producer that has reached it without a socket."""
    namesrv, broker = FakeNamesrv(), StoringBroker("broker-a")
    async with serving(namesrv), serving(broker), trio.open_nursery() as nursery:
        namesrv.add("t", broker)
        listener = InProcessListener(broker.addr)
        # Both ports of the broker have the same handlers.
        await nursery.start(Server(dict.fromkeys(range(MAX_CODE), broker._handle)).serve_on, [listener])
        instance = ClientInstance(namesrv.addr, shortcut=listener.shortcut)
        async with sharing(instance) as client, Producer(client) as producer:
            # The first request agrees on CBOR.
            for _ in range(2):
                await producer.send(Message("t", b"first"))
            await wait_all_tasks_blocked()
            broker.requests.clear()
            yield broker, producer
        nursery.cancel_scope.cancel()


def sizes(broker: StoringBroker) -> list[int]:
    """How many messages each send had, in order."""
    sends = [request for request in broker.requests if request.code in (SEND_MESSAGE_V2.code, SEND_BATCH_MESSAGE.code)]
    return [1 if each.code == SEND_MESSAGE_V2.code else len(decode_batch(each.body)[0]) for each in sends]


async def test_a_lone_ticket_of_many_senders_is_stored_at_once() -> None:
    async with near() as (broker, producer):
        producer.has_many_senders = True
        delivered: list[Ticket] = []
        for number in range(1, 4):
            producer.send_nowait(Message("t", b"lone"), on_delivery=delivered.append)
            assert len(delivered) == number == len(broker.requests)
            await wait_all_tasks_blocked()


async def test_a_lone_send_is_answered_when_its_task_waits() -> None:
    async with near() as (broker, producer):
        for body in (b"one", b"two"):
            await producer.send(Message("t", body))
            await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await producer.send(Message("t", b"cancelled before it waits"))
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        assert (await producer.send(Message("t", b"three"))).msg_id
        assert sizes(broker) == [1] * 4


async def test_other_tickets_wait_for_more() -> None:
    async with near() as (broker, producer):
        tickets = [producer.send_nowait(Message("t", b"ticket")) for _ in range(50)]
        assert not any(ticket.done() for ticket in tickets)
        await producer.flush()
        assert sum(sizes(broker)) == 50 and len(sizes(broker)) <= 2


async def test_a_burst_becomes_a_batch_though_each_send_could_be_answered_at_once() -> None:
    async with near() as (broker, producer):
        producer.has_many_senders = True
        tickets = [producer.send_nowait(Message("t", b"ticket")) for _ in range(50)]
        await producer.flush()
        assert all(ticket.error is None for ticket in tickets)
        # The first one does not wait for the others.
        assert sizes(broker)[0] == 1 and sum(sizes(broker)) == 50 and len(sizes(broker)) <= 4


async def test_tasks_that_send_again_and_again_share_batches() -> None:
    async with near() as (broker, producer):

        async def send() -> None:
            for _ in range(10):
                await producer.send(Message("t", b"task"))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(send)
        assert sum(sizes(broker)) == 200 and len(sizes(broker)) <= 60
