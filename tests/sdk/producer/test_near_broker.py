"""Sends to a broker in the event loop of its producer, which answers at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from skylark import Message, Producer, Ticket
from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.batch import decode_batch
from skylark.mqcommon.message.message import OwnKeyMessage
from skylark.remoting.net.in_process import InProcessListener
from skylark.remoting.net.server import Server
from skylark.remoting.protocol.command import Command
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


async def test_a_lone_ticket_keeps_the_key_of_its_message() -> None:
    async with near() as (broker, producer):
        producer.has_many_senders = True
        ticket = producer.send_nowait(OwnKeyMessage("t", b"keyed", unique_key="its-own", tags="a"))
        assert ticket.result().msg_id == "its-own"
        (sent,) = broker.requests
        assert sent.ext is not None and sent.ext["i"] == "TAGS\x01a\x02UNIQ_KEY\x01its-own\x02"


async def test_the_second_ticket_of_a_turn_waits_for_more() -> None:
    async with near() as (broker, producer):
        producer.has_many_senders = True
        tickets = [producer.send_nowait(OwnKeyMessage("t", b"m", unique_key=f"key-{n}")) for n in range(3)]
        assert [ticket.done() for ticket in tickets] == [True, False, False]
        await producer.flush()
        assert sizes(broker) == [1, 2]
        assert [ticket.result().msg_id for ticket in tickets] == ["key-0", "key-1", "key-2"]


async def test_a_refused_ticket_ends_with_the_error_and_the_next_is_stored_at_once() -> None:
    async with near() as (broker, producer):
        producer.has_many_senders = True
        broker.refused_bodies = {b"bad"}
        delivered: list[Ticket] = []
        bad = producer.send_nowait(OwnKeyMessage("t", b"bad", unique_key="bad"), on_delivery=delivered.append)
        assert delivered == [bad] and "answered code 13: illegal" in str(bad.error)
        await wait_all_tasks_blocked()
        assert producer.send_nowait(Message("t", b"good")).done()


async def test_a_broker_with_a_full_store_rests_and_is_then_asked_again_at_once() -> None:
    async with near() as (broker, producer):
        producer.has_many_senders = True
        broker.on(SEND_MESSAGE_V2.code, lambda request: request.respond(14, "the disk is full"))
        ticket = producer.send_nowait(OwnKeyMessage("t", b"kept", unique_key="kept"))
        assert not ticket.done() and sizes(broker) == [1]
        # While the broker rests, no ticket goes there.
        later = producer.send_nowait(Message("t", b"later"))
        assert sizes(broker) == [1]
        broker.on(SEND_MESSAGE_V2.code, broker.answer)
        assert (await ticket).tries == 2 and (await ticket).msg_id == "kept"
        await later
        await wait_all_tasks_blocked()
        assert producer.send_nowait(Message("t", b"again")).done()


async def test_a_ticket_whose_connection_ends_meanwhile_is_stored_over_the_next_one() -> None:
    async with near() as (broker, producer):
        producer.has_many_senders = True
        # The connection inside of the event loop; the others are of sockets.
        (channel,) = [each for each in broker.channels if each.is_encrypted]

        def close(request: Command) -> Command | None:
            channel.close("test")
            broker.on(SEND_MESSAGE_V2.code, broker.answer)
            return None

        broker.on(SEND_MESSAGE_V2.code, close)
        ticket = producer.send_nowait(OwnKeyMessage("t", b"kept", unique_key="kept"))
        assert not ticket.done()
        assert (await ticket).tries == 2 and (await ticket).msg_id == "kept"


async def test_a_closed_producer_takes_no_ticket() -> None:
    async with near() as (_, producer):
        producer.has_many_senders = True
        ticket = producer.send_nowait(Message("t", b"before"))
        await producer.__aexit__(None, None, None)
        assert ticket.done() and producer.backlog.waiting == 0
        with pytest.raises(SkylarkError, match="closed"):
            producer.send_nowait(OwnKeyMessage("t", b"after", unique_key="after"))
        assert producer.backlog.waiting == 0
