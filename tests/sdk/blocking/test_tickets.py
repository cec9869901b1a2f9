"""`send_nowait` of the blocking producer: from many threads, against fakes in the test's loop."""

import threading
from collections import Counter

import pytest
import trio

from mqcommon.errors import BufferFull, InvalidArgument, RouteNotFound, SendFailed, SkylarkError
from mqcommon.message.message import Message
from sdk import blocking
from sdk.runtime import SendsFailed
from tests.sdk.producer.test_producer import bodies, two_brokers
from tests.support.forks import in_child

THREADS = 8
EACH = 500


async def test_many_threads_send_and_each_ticket_has_its_own_result() -> None:
    def use(names: str) -> list[bytes]:
        called: Counter[int] = Counter()
        tickets: dict[int, list[blocking.Ticket]] = {}
        with blocking.Producer(names, buffer_count=700) as producer:

            def send(thread: int) -> None:
                mine = tickets[thread] = []
                for number in range(EACH):
                    message = Message("t", b"%d/%d" % (thread, number), sharding_key=f"key-{thread}")
                    while True:
                        try:
                            mine.append(
                                producer.send_nowait(message, on_delivery=lambda ticket: called.update([id(ticket)]))
                            )
                            break
                        except BufferFull as full:
                            assert "`producer.room()`" in str(full)
                            producer.room()
                    if number % 100 == 0:
                        producer.flush()

            threads = [threading.Thread(target=send, args=(number,)) for number in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            producer.flush()
            results = [ticket.result(0) for mine in tickets.values() for ticket in mine]
            assert len({(result.queue, result.queue_offset) for result in results}) == THREADS * EACH
            assert called == Counter(id(ticket) for mine in tickets.values() for ticket in mine)
            for mine in tickets.values():
                offsets = [ticket.result().queue_offset for ticket in mine]
                assert offsets == sorted(offsets), "a key keeps its order"
        return [ticket.message.body for mine in tickets.values() for ticket in mine]

    async with two_brokers() as (names, a, b):
        sent = await trio.to_thread.run_sync(use, names)
        assert sorted(bodies(a, b)) == sorted(sent)


async def test_what_tickets_say() -> None:
    def use(names: str) -> None:
        with blocking.Producer(names) as producer:
            ticket = producer.send_nowait(Message("t", b"x"))
            assert ticket.result(30).tries == ticket.result().tries == 1
            assert ticket.done()
            with pytest.raises(RouteNotFound):
                producer.send_nowait(Message("nowhere")).result()
            unseen = producer.send_nowait(Message("nowhere"))
            with pytest.raises(SendsFailed) as failed:
                producer.flush()
            assert failed.value.exceptions == (unseen.error,)
            with pytest.raises(TypeError, match="message must be a Message"):
                producer.send_nowait(b"x")  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="timeout_ms"):
                producer.send_nowait(Message("t"), timeout_ms=-1)
        with pytest.raises(SkylarkError, match="closed"):
            producer.send_nowait(Message("t"))
        with pytest.raises(RuntimeError, match="'with'"):
            blocking.Producer(names).send_nowait(Message("t"))

    async with two_brokers() as (names, _a, _b):
        await trio.to_thread.run_sync(use, names)


async def test_a_result_is_waited_for_as_long_as_the_caller_likes() -> None:
    def use(names: str) -> None:
        with pytest.raises(SendsFailed), blocking.Producer(names, send_timeout_ms=500) as producer:
            waiting = [producer.send_nowait(Message("t", b"x")) for _ in range(2)]
            with pytest.raises(TimeoutError, match="it goes on"):
                waiting[0].result(0.01)
            asked: list[object] = []
            told = threading.Event()

            def ask(ticket: blocking.Ticket) -> None:
                for other in (ticket, producer.send_nowait(Message("t"))):
                    try:
                        asked.append(other.result())
                    except (SendFailed, RuntimeError) as error:
                        asked.append(type(error))
                told.set()

            producer.send_nowait(Message("t"), on_delivery=ask, timeout_ms=50)
            assert told.wait(30)
            assert asked == [SendFailed, RuntimeError], "the client's thread must not wait for itself"
            with pytest.raises(SendFailed):
                waiting[0].result()

    async with two_brokers() as (names, a, b):
        a.is_silent = b.is_silent = True
        await trio.to_thread.run_sync(use, names)


async def test_the_end_raises_what_is_lost_unless_the_block_did(caplog: pytest.LogCaptureFixture) -> None:
    def use(names: str) -> None:
        with pytest.raises(SendsFailed), blocking.Producer(names) as producer:
            producer.send_nowait(Message("nowhere"))
        with pytest.raises(ZeroDivisionError), blocking.Producer(names) as producer:
            producer.send_nowait(Message("nowhere"))
            raise ZeroDivisionError
        producer = blocking.Producer(names).open()
        good = producer.send_nowait(Message("t", b"x"))
        producer.close()
        assert good.result(0).tries == 1
        with blocking.Client(names) as client:
            producer = blocking.Producer(client).open()
            producer.send_nowait(Message("nowhere"))
            with pytest.raises(SendsFailed):
                producer.close()
            producer.close()

    async with two_brokers() as (names, a, b):
        await trio.to_thread.run_sync(use, names)
        assert bodies(a, b) == [b"x"]
    assert "1 messages were not stored" in caplog.text


async def test_a_child_sends_by_itself_and_leaves_its_parents_tickets() -> None:
    def use(names: str) -> None:
        with blocking.Producer(names) as producer:
            parents = producer.send_nowait(Message("t", b"parent"))

            def child() -> str:
                producer.send_nowait(Message("t", b"child")).result(30)
                if not parents.done():
                    with pytest.raises(RuntimeError, match="before a fork"):
                        parents.result(30)
                producer.close()
                return "done"

            assert in_child(child) == "done"
            parents.result(30)

    async with two_brokers() as (names, a, b):
        await trio.to_thread.run_sync(use, names)
        assert sorted(bodies(a, b)) == [b"child", b"parent"]
