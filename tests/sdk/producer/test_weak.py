"""Messages that a broker stores with less safety than it should are stored once more, by a broker that is safer."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import BrokerError, RequestTimeout, SendFailed
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqproxy.transactions import Halves
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.transactions import END_TRANSACTION
from skylark.sdk.producer import Producer, SendStatus, brokers
from skylark.sdk.producer.pending import ALONE, DEFERRED, TOGETHER
from skylark.sdk.producer.transactional import TransactionProducer
from skylark.sdk.producer.weak import CERTAIN_MS, LONGEST_PAUSE_S, TRY_MS, WeakBrokers
from tests.sdk.fakes import FakeNamesrv, serving
from tests.sdk.producer.lanes import OK, REFUSING, SILENT, UNSAFE, Sender, a_lane, addr_of
from tests.sdk.producer.test_producer import StoringBroker, bodies, two_brokers
from tests.support.waiting import until

WEAK = [status for status in SendStatus if status is not SendStatus.SEND_OK]
NO_SLAVE = ResponseCode.SLAVE_NOT_AVAILABLE


def stored_at(sender: Sender, name: str) -> list[bytes]:
    return [body for addr, body in sender.cluster.stored if addr == addr_of(name)]


async def many(sender: Sender, count: int, prefix: bytes = b"", alone: int = TOGETHER) -> list[bytes]:
    """Sends that leave together, and have ended."""
    made = [b"%s%d" % (prefix, number) for number in range(count)]
    async with trio.open_nursery() as nursery:
        for body in made:
            nursery.start_soon(sender.send, body, 3, alone)
    return made


# --- one send


@pytest.mark.parametrize("status", WEAK)
async def test_a_weak_answer_is_sent_once_more_to_a_strong_broker(
    autojump_clock: MockClock, status: SendStatus, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_lane("a", "b") as sender:
        sender.cluster.acts["a:1"] = status.value
        for number in range(20):
            await sender.send(b"%d" % number)
        assert not sender.errors
        assert all(result.status is SendStatus.SEND_OK for result in sender.results.values())
        assert sorted(stored_at(sender, "b"), key=int) == [b"%d" % number for number in range(20)]
        twice = stored_at(sender, "a")
        assert len(twice) == 1, "the broker is avoided after its first weak answer"
        assert sender.results[twice[0]].tries == 2 and sender.owner.retried == 1
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert status.name in caplog.text and "sent once more to another broker" in caplog.text


async def test_a_broker_that_lacks_its_slave_stores_no_copy_that_another_broker_can_store_safely(
    autojump_clock: MockClock,
) -> None:
    async with a_lane("a", "b") as sender:
        sender.cluster.acts["a:1"] = UNSAFE
        for number in range(20):
            await sender.send(b"%d" % number)
        assert not sender.errors and len(sender.cluster.tries_at("a")) == 1
        assert sorted(stored_at(sender, "b"), key=int) == [b"%d" % number for number in range(20)]
        assert stored_at(sender, "a") == []
        # Without another broker the message is stored, with its weak status.
        sender.cluster.acts["b:1"] = REFUSING
        await sender.send(b"alone")
        assert stored_at(sender, "a") == [b"alone"]


async def test_a_broker_that_lacks_its_slave_stores_no_copy_while_another_one_may_have_its_slave_again(
    autojump_clock: MockClock,
) -> None:
    """The slaves of two sets are restarted one after the other, and the first set is still avoided."""
    async with a_lane("a", "b") as sender:
        sender.cluster.acts["b:1"] = NO_SLAVE
        await sender.send(b"first")
        sender.cluster.acts.update({"a:1": UNSAFE, "b:1": OK})
        # The weak answer is older than CERTAIN_MS, and its pause is not over.
        sender.owner.brokers.faults.weak._avoided_until["b:1"] = (trio.current_time() + TRY_MS) * 1000
        await trio.sleep(CERTAIN_MS / 1000)
        stored_before = len(stored_at(sender, "a"))
        await sender.send(b"second")
        # Slow, and so avoided as well.
        sender.owner.brokers.faults.answered("b:1", 5_000, trio.current_time() * 1000)
        await sender.send(b"third")
        assert all(sender.results[body].status is SendStatus.SEND_OK for body in (b"second", b"third"))
        assert len(stored_at(sender, "a")) == stored_before


@pytest.mark.parametrize("act", [REFUSING, ResponseCode.SYSTEM_BUSY])
async def test_a_retry_is_not_stored_weakly_either_while_another_broker_can_store_it_safely(
    autojump_clock: MockClock, act: int
) -> None:
    for busy, unsafe in ("ab", "ba"):
        async with a_lane("a", "b", "c") as sender:
            sender.cluster.acts.update({addr_of(busy): act, addr_of(unsafe): UNSAFE})
            for number in range(10):
                await sender.send(b"%d" % number)
                sender.owner.brokers.faults.cleared(addr_of(busy))
                sender.owner.brokers.faults.weak.forget(addr_of(unsafe))
            assert not sender.errors and stored_at(sender, unsafe) == []


async def test_a_message_that_is_stored_weakly_is_not_stored_weakly_once_more(autojump_clock: MockClock) -> None:
    """RocketMQ's brokers do not know the field that asks for this, so the first copy is stored."""
    async with a_lane("a", "b") as sender:
        sender.owner.accept_weaker = True
        sender.cluster.acts.update({"a:1": UNSAFE, "b:1": NO_SLAVE})
        for number in range(10):
            await sender.send(b"%d" % number)
            for addr in ("a:1", "b:1"):
                sender.owner.brokers.faults.weak.forget(addr)
        assert not sender.errors and max(Counter(body for _, body in sender.cluster.stored).values()) == 1


async def test_a_broker_is_used_again_once_it_is_strong(autojump_clock: MockClock) -> None:
    async with a_lane("a", "b") as sender:
        sender.cluster.acts["a:1"] = NO_SLAVE
        tries = 0
        for second in range(20):
            if second == 10:
                sender.cluster.acts["a:1"] = OK
                tries = len(stored_at(sender, "a"))
            for number in range(10):
                await sender.send(b"%d %d" % (second, number))
            await trio.sleep(1)
        assert not sender.errors
        assert 3 <= tries <= 6, "pauses between tries grow"
        last = Counter(addr for addr, _ in sender.cluster.stored[-40:])
        assert last["a:1"] == last["b:1"] == 20


async def test_only_when_no_broker_is_strong_the_sender_gets_the_weak_status(autojump_clock: MockClock) -> None:
    async with a_lane("a", "b", "c") as sender:
        sender.cluster.acts.update({addr_of(name): NO_SLAVE for name in "abc"})
        await sender.send(b"first")
        assert len(sender.cluster.stored) == 3, "nobody knew that they are weak"
        await sender.send(b"second")
        assert [body for _, body in sender.cluster.stored].count(b"second") == 1
        for body in (b"first", b"second"):
            error = sender.errors[body]
            assert isinstance(error, SendFailed) and "SLAVE_NOT_AVAILABLE" in str(error) and "did not" not in str(error)
        # The strong one is found, although it was weak a while ago.
        sender.cluster.acts["c:1"] = OK
        await trio.sleep(CERTAIN_MS / 1000)
        await sender.send(b"third")
        assert sender.results[b"third"].status is SendStatus.SEND_OK and b"third" in stored_at(sender, "c")


async def test_a_broker_that_was_weak_takes_over_when_the_other_one_gets_weak(autojump_clock: MockClock) -> None:
    """A slave of each set is restarted, one after the other: nothing fails, whatever pause the first one is in."""
    async with a_lane("a", "b") as sender:
        sender.cluster.acts["a:1"] = NO_SLAVE
        for number in range(40):
            await sender.send(b"before %d" % number)
            await trio.sleep(0.2)
        sender.cluster.acts.update({"a:1": OK, "b:1": NO_SLAVE})
        await trio.sleep(CERTAIN_MS / 1000)
        for number in range(40):
            await sender.send(b"after %d" % number)
        assert not sender.errors
        assert len([body for body in stored_at(sender, "b") if body.startswith(b"after")]) <= 1


@pytest.mark.parametrize(("act", "cause"), [(SILENT, RequestTimeout), (16, BrokerError), (REFUSING, None)])
async def test_a_second_copy_that_fails_leaves_the_weak_status(
    autojump_clock: MockClock, act: int, cause: type[Exception] | None
) -> None:
    async with a_lane("a", "b") as sender:
        sender.cluster.acts["a:1"] = NO_SLAVE
        await sender.send(b"first")
        # Only the weak broker can be asked, until it is its turn to be tried again; then the strong broker fails.
        sender.owner.brokers.faults.weak.forget("a:1")
        sender.cluster.acts["b:1"] = act
        started = trio.current_time()
        for number in range(4):
            await sender.send(b"%d" % number)
        assert trio.current_time() < started + 4 * 3
        assert stored_at(sender, "a")[-4:] == [b"0", b"1", b"2", b"3"]
        errors = [sender.errors[b"%d" % number] for number in range(4)]
        assert all("SLAVE_NOT_AVAILABLE" in str(error) for error in errors)
        if cause is not None:
            assert any(error.__cause__ is not None and cause in (type(error.__cause__), type(error.__cause__.__cause__))
                       for error in errors)  # fmt: skip


async def test_the_second_copy_is_made_within_the_time_of_the_send(autojump_clock: MockClock) -> None:
    async with a_lane("a", "b") as sender:
        sender.cluster.acts["b:1"] = NO_SLAVE
        for number in range(4):
            await sender.send(b"%d" % number)
        sender.owner.brokers.faults.weak.forget("b:1")
        sender.cluster.acts["a:1"] = SILENT
        started = trio.current_time()
        await sender.send(b"late", timeout_s=0.5)
        assert trio.current_time() <= started + 0.5 + 0.05
        assert "SLAVE_NOT_AVAILABLE" in str(sender.errors[b"late"])


async def test_a_producer_without_retries_makes_no_second_copy(autojump_clock: MockClock) -> None:
    async with a_lane("a", "b", retries=0) as sender:
        sender.cluster.acts["a:1"] = NO_SLAVE
        for number in range(20):
            await sender.send(b"%d" % number)
        assert len(sender.errors) == 1, "but it avoids the broker"
        assert len(sender.cluster.stored) == 20


async def test_a_message_of_a_chosen_queue_goes_nowhere_else(autojump_clock: MockClock) -> None:
    async with a_lane("a", "b", queue=MessageQueue("t", "a", 0)) as sender:
        sender.cluster.acts["a:1"] = NO_SLAVE
        for number in range(3):
            await sender.send(b"%d" % number)
        assert sender.cluster.stored == [("a:1", b"%d" % number) for number in range(3)], "once each, in their order"
        assert len(sender.errors) == 3
        sender.cluster.acts["a:1"] = OK
        await sender.send(b"3")
        assert sender.results[b"3"].tries == 1
        assert not sender.owner.brokers.faults.weak, "what it says of the broker counts for all"


async def test_a_cancelled_send_makes_no_second_copy(autojump_clock: MockClock) -> None:
    async with a_lane("a", "b") as sender:
        sender.cluster.acts.update({"a:1": NO_SLAVE, "b:1": NO_SLAVE})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.send, b"x")
            await wait_all_tasks_blocked()
            assert len(sender.cluster.tries) == 1
            nursery.cancel_scope.cancel()
        await trio.sleep(1)
        assert len(sender.cluster.stored) == 1


# --- batches


@pytest.mark.parametrize("alone", [TOGETHER, DEFERRED, ALONE])
async def test_a_batch_is_sent_once_more_as_a_whole(autojump_clock: MockClock, alone: int) -> None:
    async with a_lane("a", "b") as sender:
        sender.cluster.greeted.update(("a:1", "b:1"))
        sender.cluster.acts["a:1"] = NO_SLAVE
        sent = await many(sender, 1_000, b"", alone)
        assert not sender.errors and sorted(stored_at(sender, "b")) == sorted(sent)
        places = {body: sender.cluster.stored[result.queue_offset] for body, result in sender.results.items()}
        assert all(place == ("b:1", body) for body, place in places.items()), "each has its own place"
        before = len(stored_at(sender, "a"))
        await trio.sleep(LONGEST_PAUSE_S)
        await many(sender, 1_000, b"more ", alone)
        assert not sender.errors
        assert len(stored_at(sender, "a")) == before + 1, "one message tries whether the broker is strong again"


@pytest.mark.parametrize("is_accepted", [False, True])
async def test_each_send_of_a_batch_gets_its_weak_result_when_the_second_copy_fails(
    autojump_clock: MockClock, is_accepted: bool
) -> None:
    async with a_lane("a", "b") as sender:
        sender.owner.accept_weaker = is_accepted
        sender.cluster.acts.update({"a:1": NO_SLAVE, "b:1": 16})
        await many(sender, 100)
        assert len(sender.results if is_accepted else sender.errors) == 100
        assert Counter(body for _, body in sender.cluster.stored).most_common(1)[0][1] == 1
        for body, result in sender.results.items():
            assert result.status is SendStatus.SLAVE_NOT_AVAILABLE
            assert sender.cluster.stored[result.queue_offset] == ("a:1", body)
            assert result.tries <= 2
        for error in sender.errors.values():
            assert isinstance(error, SendFailed) and "SLAVE_NOT_AVAILABLE" in str(error)


# --- producers


@asynccontextmanager
async def weak_and_strong() -> AsyncIterator[tuple[str, StoringBroker, StoringBroker]]:
    async with two_brokers() as (names, weak, strong):
        weak.code = NO_SLAVE
        yield names, weak, strong


async def test_many_and_oneway_and_nowait_sends_avoid_a_weak_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine a try would be due while these messages are sent, perhaps more than one.
    monkeypatch.setattr(brokers, "FIRST_PAUSE_S", 3_600.0)
    monkeypatch.setattr(brokers, "LONGEST_PAUSE_S", 3_600.0)
    async with weak_and_strong() as (names, weak, strong), Producer(names) as producer:
        results = await producer.send_many("t", [b"%d" % number for number in range(5_000)])
        assert {result.status for result in results} == {SendStatus.SEND_OK}
        assert {result.queue.broker_name for result in results} == {"broker-b"}
        assert len(set(bodies(strong))) == 5_000
        before = len(bodies(weak))
        for number in range(4):
            await producer.send_oneway(Message("t", b"oneway %d" % number))
        tickets = [producer.send_nowait(Message("t", b"nowait %d" % number)) for number in range(100)]
        await producer.flush()
        assert {(await ticket).status for ticket in tickets} == {SendStatus.SEND_OK}
        # Nobody learns the answer to a oneway message.
        await until(lambda: len(set(bodies(strong))) >= 5_104, "the strong broker has all of them")
        assert len(bodies(weak)) == before


async def test_a_ticket_that_no_strong_broker_took_ends_once() -> None:
    async with weak_and_strong() as (names, _, strong):
        strong.code = 16
        async with Producer(names, accept_weaker=True) as producer:
            ended: list[SendStatus] = []
            for number in range(20):
                producer.send_nowait(
                    Message("t", b"%d" % number), on_delivery=lambda ticket: ended.append(ticket.result().status)
                )
            await producer.flush()
            assert ended == [SendStatus.SLAVE_NOT_AVAILABLE] * 20 and producer.backlog.waiting == 0
            results = await producer.send_many("t", [b"many %d" % number for number in range(1_000)])
            assert {result.status for result in results} == {SendStatus.SLAVE_NOT_AVAILABLE}
            first = results[0].queue_offset
            assert [result.queue_offset for result in results[:3]] == [first, first + 1, first + 2]


async def test_a_half_is_sent_once_more_and_its_weak_copy_rolled_back() -> None:
    names, weak, strong = FakeNamesrv(), StoringBroker("broker-a"), StoringBroker("broker-b")
    weak.code = NO_SLAVE
    ends: list[tuple[str, str, str]] = []

    def note(name: str, request: Command) -> None:
        ext = request.ext or {}
        ends.append((name, str(ext["commitOrRollback"]), str(ext["msgId"])))

    weak.on(END_TRANSACTION.code, lambda request: note("weak", request))
    strong.on(END_TRANSACTION.code, lambda request: note("strong", request))
    async with serving(names), serving(weak), serving(strong):
        names.add("t", weak, strong)
        async with TransactionProducer(names.addr, group="g") as producer:
            ids = []
            for number in range(4):
                async with producer.transaction(Message("t", b"%d" % number)) as transaction:
                    assert transaction.result.queue.broker_name == "broker-b"
                ids.append(transaction.transaction_id)
            [copy] = bodies(weak)
            await until(lambda: len(ends) == 5, "all ends have arrived")
            rollback = [each for each in ends if each[0] == "weak"]
            assert rollback == [("weak", "12", ids[int(copy)])]
            assert [each for each in ends if each[0] == "strong"] == [("strong", "8", each) for each in ids]


async def test_the_proxy_sends_a_half_once_more_and_rolls_its_weak_copy_back() -> None:
    names, weak, strong = FakeNamesrv(), StoringBroker("broker-a"), StoringBroker("broker-b")
    weak.code = NO_SLAVE
    ends: list[str] = []
    weak.on(END_TRANSACTION.code, lambda request: ends.append(str((request.ext or {})["commitOrRollback"])))
    async with serving(names), serving(weak), serving(strong):
        names.add("t", weak, strong)
        async with Halves(names.addr, max_message_bytes=1_000, asked=print) as halves:
            for number in range(4):
                result, half = await halves.send(Message("t", b"%d" % number, properties={}))
                assert (result.status, half.broker_name) == (SendStatus.SEND_OK, "broker-b")
            await until(lambda: ends == ["12"], "the copy was rolled back")
            assert len(bodies(weak)) == 1 and len(bodies(strong)) == 4


# --- the state of brokers


def test_pauses_of_a_weak_broker_grow_with_its_tries_only() -> None:
    weak = WeakBrokers(Backoff(0.5, 5.0, Random(0)))
    assert not weak and weak.usable("a", 0)
    assert weak.answered_weakly("a", 1_000)
    # Answers to requests that were on their way.
    assert not weak.answered_weakly("a", 1_001) and not weak.answered_weakly("a", 1_002)
    assert weak and "a" in weak and not weak.usable("a", 1_200)
    assert weak.is_due("a", 1_500) and weak.usable("a", 1_500)
    weak.requested("a", 1_500)
    assert not weak.usable("a", 1_500 + TRY_MS - 1), "one try at a time"
    assert not weak.answered_weakly("a", 1_600)
    assert not weak.usable("a", 2_000) and weak.usable("a", 2_600)
    assert weak.is_certain("a", 1_700) and not weak.is_certain("a", 1_600 + CERTAIN_MS)
    assert weak.forget("a") and not weak and not weak.forget("a")
    assert weak.usable("a", 1_700) and not weak.is_certain("a", 1_700)


def test_a_try_without_an_answer_is_repeated() -> None:
    weak = WeakBrokers(Backoff(0.5, 5.0, Random(0)))
    weak.answered_weakly("a", 0)
    weak.requested("a", 500)
    assert weak.is_due("a", 500 + TRY_MS)
