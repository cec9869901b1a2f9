"""`send_nowait` against brokers that store, refuse and are silent: what becomes of tickets, and what callers see."""

import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from skylark.mqcommon.errors import BufferFull, InvalidArgument, RouteNotFound, SendFailed, SkylarkError
from skylark.mqcommon.message.message import Message, OwnKeyMessage
from skylark.mqcommon.message.queue import MessageQueue
from skylark.sdk.client import Client
from skylark.sdk.producer import Producer
from skylark.sdk.producer.backlog import MOST_KEPT
from skylark.sdk.producer.packing import THREAD_BYTES
from skylark.sdk.producer.producer import Ticket
from skylark.sdk.runtime import SendsFailed
from tests.sdk.fakes import FakeNamesrv, serving
from tests.sdk.producer.test_producer import StoringBroker, bodies, two_brokers
from tests.support.waiting import DEADLINE_S

PLACE = MessageQueue("t", "broker-a", 0)


@asynccontextmanager
async def one_broker() -> AsyncIterator[tuple[FakeNamesrv, StoringBroker]]:
    """One broker, with two queues."""
    names, broker = FakeNamesrv(), StoringBroker("broker-a")
    async with serving(names), serving(broker):
        names.add("t", broker)
        yield names, broker


async def test_each_ticket_has_its_own_result_and_a_burst_is_a_few_requests() -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        await producer.send(Message("t", b"first"))
        before = a.requests_of + b.requests_of
        tickets = [producer.send_nowait(Message("t", b"%d" % n, tags="x")) for n in range(5_000)]
        assert not any(ticket.done() for ticket in tickets)
        await producer.flush()
        results = [ticket.result() for ticket in tickets]
        assert a.requests_of + b.requests_of - before < 20
        places = {addr.name: Counter[int]() for addr in (a, b)}
        stored = {(broker.name, queue_id): [body for q, body in broker.stored if q == queue_id]
                  for broker in (a, b) for queue_id in (0, 1)}  # fmt: skip
        for number, result in enumerate(results):
            queue = result.queue
            assert stored[queue.broker_name, queue.queue_id][result.queue_offset] == b"%d" % number
            places[queue.broker_name][queue.queue_id] += 1
        assert len({result.msg_id for result in results}) == 5_000
        assert all(result.tries == 1 for result in results)


async def test_the_first_sends_of_a_topic_do_not_wait_for_its_route() -> None:
    async with one_broker() as (names, broker), Producer(names.addr) as producer:
        tickets = [producer.send_nowait(Message("t", b"%d" % n, sharding_key="k")) for n in range(100)]
        with trio.fail_after(DEADLINE_S):
            last = await producer.send(Message("t", b"100", sharding_key="k"))
        tickets += [producer.send_nowait(Message("t", b"%d" % n, sharding_key="k")) for n in range(101, 200)]
        await producer.flush()
        assert bodies(broker) == [b"%d" % n for n in range(200)]
        assert [ticket.result().queue_offset for ticket in tickets] == [*range(100), *range(101, 200)]
        assert last.queue_offset == 100


async def test_several_tasks_wait_and_a_cancelled_one_ends_nothing() -> None:
    async with one_broker() as (names, broker), Producer(names.addr) as producer:
        ticket = producer.send_nowait(Message("t", b"x"))
        seen = []

        async def wait() -> None:
            seen.append((await ticket).queue_offset)

        with pytest.raises(RuntimeError, match="has not ended"):
            ticket.result()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(wait)
            with trio.move_on_after(0):
                await ticket
            assert not ticket.done()
        assert seen == [0, 0, 0]
        assert (await ticket).queue_offset == ticket.result().queue_offset == 0
        assert bodies(broker) == [b"x"]


async def test_on_delivery_is_called_once_and_its_errors_hurt_nobody(caplog: pytest.LogCaptureFixture) -> None:
    called: list[Ticket] = []

    def tell(ticket: Ticket) -> None:
        called.append(ticket)
        if len(called) % 2:
            raise ZeroDivisionError

    async with one_broker() as (names, broker), Producer(names.addr) as producer:
        broker.refused_bodies = {b"7"}
        with caplog.at_level(logging.ERROR, "skylark.sdk"):
            tickets = [producer.send_nowait(Message("t", b"%d" % n), on_delivery=tell) for n in range(10)]
            await producer.flush()
        assert Counter(map(id, called)) == Counter(map(id, tickets))
        assert len([record for record in caplog.records if "on_delivery" in record.message]) == 5
        assert [ticket.error is None for ticket in tickets] == [n != 7 for n in range(10)]
        assert tickets[3].message.body == b"3"
        with pytest.raises(SendFailed, match="illegal"):
            tickets[7].result()


async def test_on_delivery_may_send_again() -> None:
    async with one_broker() as (names, broker):
        broker.refused_bodies = {b"bad"}
        async with Producer(names.addr) as producer:
            again: list[Ticket] = []

            def tell(ticket: Ticket) -> None:
                if ticket.error is not None:
                    again.append(producer.send_nowait(Message("t", b"mended")))

            producer.send_nowait(Message("t", b"bad"), on_delivery=tell)
            await producer.flush()
            assert (await again[0]).tries == 1
    assert bodies(broker) == [b"mended"]


@pytest.mark.parametrize("bound", [{"buffer_count": 3}, {"buffer_bytes": 5}])
async def test_a_full_buffer_refuses_and_room_waits(bound: dict[str, int]) -> None:
    async with one_broker() as (names, broker), Producer(names.addr, **bound, send_timeout_ms=60_000) as producer:
        await producer.send(Message("t", b"first"))
        with trio.fail_after(DEADLINE_S):
            await producer.room()
            tickets = [producer.send_nowait(Message("t", b"xy")) for _ in range(3)]
            with pytest.raises(BufferFull, match=r"await producer\.room\(\)") as full:
                producer.send_nowait(Message("t", b"y"))
            assert isinstance(full.value, BufferError)
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(producer.room)
            assert all(ticket.done() for ticket in tickets)
            await producer.send_nowait(Message("t", b"y"))
        assert len(broker.stored) == 5


async def test_flush_raises_what_nobody_has_seen() -> None:
    async with one_broker() as (names, broker), Producer(names.addr) as producer:
        broker.refused_bodies = {b"unseen", b"awaited", b"asked", b"told"}
        unseen = producer.send_nowait(Message("t", b"unseen"))
        awaited = producer.send_nowait(Message("t", b"awaited"))
        asked = producer.send_nowait(Message("t", b"asked"))
        producer.send_nowait(Message("t", b"told"), on_delivery=lambda ticket: None)
        good = producer.send_nowait(Message("t", b"good"))
        with pytest.raises(SendFailed):
            await awaited
        with pytest.raises(SendFailed):
            await asked
        await good
        with pytest.raises(SendsFailed, match="1 messages were not stored") as failed:
            await producer.flush()
        assert failed.value.exceptions == (unseen.error,)
        await producer.flush()
        with pytest.raises(SendFailed):
            unseen.result()


async def test_the_errors_that_are_kept_are_bounded() -> None:
    async with Producer("127.0.0.1:1", send_timeout_ms=20, start_timeout_ms=None) as producer:
        for _ in range(MOST_KEPT + 5):
            producer.send_nowait(Message("t", b""))
        with pytest.raises(SendsFailed, match=f"{MOST_KEPT + 5} messages .* the first {MOST_KEPT}") as failed:
            await producer.flush()
        assert len(failed.value.exceptions) == MOST_KEPT
        await producer.flush()


async def test_an_unknown_topic_fails_the_tickets_and_not_the_call() -> None:
    async with one_broker() as (names, broker), Producer(names.addr) as producer:
        tickets = [producer.send_nowait(Message("nowhere", b"")) for _ in range(1_000)]
        good = producer.send_nowait(Message("t", b"x"))
        await good
        for ticket in tickets:
            with pytest.raises(RouteNotFound, match="nowhere"):
                await ticket
        await producer.flush()
        assert bodies(broker) == [b"x"]
        assert len(names.asked(105)) < 10


async def test_mistakes_are_raised_at_the_call_and_count_nothing() -> None:
    async with one_broker() as (names, broker), Producer(names.addr, buffer_count=1) as producer:
        for known in (False, True):
            for message, options, error in (
                (b"x", {}, TypeError),
                (Message("t", bytes(5 << 20)), {}, InvalidArgument),
                (Message("t"), {"timeout_ms": 0}, InvalidArgument),
                (Message("t"), {"queue": "q"}, TypeError),
                (Message("t"), {"queue": MessageQueue("u", "broker-a", 0)}, InvalidArgument),
                (Message("t"), {"selector": 5}, TypeError),
                (Message("t"), {"on_delivery": 5}, TypeError),
                (Message("t"), {"delay": timedelta(-1)}, InvalidArgument),
            ):
                with pytest.raises(error):
                    producer.send_nowait(message, **options)  # type: ignore[arg-type]
            await producer.send_nowait(Message("t", b"%d" % known))
        assert bodies(broker) == [b"0", b"1"]
    with pytest.raises(SkylarkError, match="closed"):
        producer.send_nowait(Message("t"))
    with pytest.raises(InvalidArgument, match="buffer_count"):
        Producer("127.0.0.1:1", buffer_count=0)
    with pytest.raises(RuntimeError, match="async with"):
        Producer("127.0.0.1:1").send_nowait(Message("t"))


async def test_the_options_of_send() -> None:
    async with one_broker() as (names, broker), Producer(names.addr) as producer:
        for number in range(2):
            queue = await producer.send_nowait(Message("t", b"q"), queue=PLACE)
            assert (queue.queue, queue.queue_offset) == (PLACE, number)
        chosen = await producer.send_nowait(Message("t", b"s"), selector=lambda queues, message: queues[1])
        assert chosen.queue.queue_id == 1
        broken = producer.send_nowait(Message("t", b"s"), selector=lambda queues, message: queues[9])
        with pytest.raises(IndexError):
            await broken
        timed = await producer.send_nowait(Message("t", b"d"), delay=timedelta(seconds=9))
        own = await producer.send_nowait(OwnKeyMessage("t", b"k", unique_key="mine"))
        assert own.msg_id == "mine"
        assert timed.status.name == "SEND_OK"
        assert any("TIMER_DELAY_MS" in str(request.ext) for request in broker.asked(310))
        broker.is_silent = True
        late = producer.send_nowait(Message("t", b"x"), timeout_ms=50)
        with pytest.raises(SendFailed):
            await late


async def test_large_bodies_are_compressed_and_keep_their_order() -> None:
    async with one_broker() as (names, broker), Producer(names.addr, compression="zlib") as producer:
        large = b"x" * (2 * THREAD_BYTES)
        tickets: list[Ticket] = []
        sizes: list[int] = []
        for number in range(40):
            body = b"%02d" % number + (large if number % 3 == 0 else b"y" * 5_000 if number % 3 == 1 else b"")
            message = Message("t", body, sharding_key="k")
            sizes.append(len(body))
            if number % 10 == 9:
                await producer.send(message)
            else:
                tickets.append(producer.send_nowait(message))
        beside = [producer.send_nowait(Message("t", large)) for _ in range(5)]
        await producer.flush()
        assert {len(ticket.message.body) for ticket in beside} == {len(large)}
        assert [ticket.message.body[:2] for ticket in tickets] == [b"%02d" % n for n in range(40) if n % 10 != 9]
        places = [(ticket.result().queue, ticket.result().queue_offset) for ticket in tickets]
        assert places == sorted(places) and len(set(places)) == len(tickets)
        assert len({queue for queue, _ in places}) == 1
        assert len(broker.stored) == 45
        assert max(len(body) for _, body in broker.stored) < 1_000


async def test_the_end_of_the_producer_waits_for_the_sends() -> None:
    async with one_broker() as (names, broker):
        async with Producer(names.addr) as producer:
            tickets = [producer.send_nowait(Message("t", b"%d" % n)) for n in range(100)]
        assert all(ticket.result().tries == 1 for ticket in tickets)
        assert len(broker.stored) == 100


async def test_the_end_of_the_producer_raises_what_is_lost() -> None:
    async with one_broker() as (names, broker):
        broker.refused_bodies = {b"bad"}
        with pytest.raises(SendsFailed, match="1 messages"):
            async with Producer(names.addr) as producer:
                producer.send_nowait(Message("t", b"bad"))
        broker.is_silent = True
        called: list[Ticket] = []
        with pytest.raises(SendsFailed) as failed:
            async with Producer(names.addr, send_timeout_ms=200) as producer:
                tickets = [
                    producer.send_nowait(Message("t", b"x"), timeout_ms=60_000),
                    producer.send_nowait(Message("t", b"x"), queue=PLACE, timeout_ms=60_000),
                    producer.send_nowait(Message("t", b"y"), queue=PLACE, timeout_ms=60_000),
                ]
                told = producer.send_nowait(Message("t", b"x"), on_delivery=called.append, timeout_ms=60_000)
        assert len(failed.value.exceptions) == 3
        assert all(isinstance(ticket.error, SkylarkError) for ticket in (*tickets, told))
        assert called == [told]


async def test_an_error_of_the_block_goes_first(caplog: pytest.LogCaptureFixture) -> None:
    async with one_broker() as (names, broker):
        broker.refused_bodies = {b"bad"}
        with caplog.at_level(logging.ERROR, "skylark.sdk"), pytest.raises(ZeroDivisionError):
            async with Producer(names.addr) as producer:
                producer.send_nowait(Message("t", b"bad"))
                raise ZeroDivisionError
        assert "1 messages were not stored" in caplog.text and "illegal" in caplog.text


async def test_a_cancelled_end_does_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    async with one_broker() as (names, broker):
        broker.is_silent = True
        with caplog.at_level(logging.ERROR, "skylark.sdk"), trio.CancelScope() as scope:
            async with Producer(names.addr, send_timeout_ms=60_000) as producer:
                ticket = producer.send_nowait(Message("t", b"x"))
                scope.cancel()
        assert ticket.done() and isinstance(ticket.error, SkylarkError)
        assert "not stored" in caplog.text


async def test_every_ticket_ends_when_the_client_closes_under_it() -> None:
    """Tickets in a lane, in flight, on the way to an absent broker, and in line for a route."""
    async with one_broker() as (names, broker):
        broker.is_silent = True
        with pytest.raises(SendsFailed):
            async with Client(names.addr) as client:
                gone = StoringBroker("broker-b")
                async with serving(gone):
                    names.add("u", gone)
                async with Producer(client, send_timeout_ms=100) as producer:
                    await producer.queues("t")
                    tickets = [producer.send_nowait(Message(topic, b"x"), timeout_ms=60_000) for topic in "ttuv"]
                    tickets += [producer.send_nowait(Message("t", b"x"), queue=PLACE, timeout_ms=60_000) for _ in "12"]
                    await wait_all_tasks_blocked()
                    names.stop()
        assert all(ticket.done() for ticket in tickets)
