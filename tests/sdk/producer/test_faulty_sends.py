"""One send's fault is its own: it is raised in its caller, and the client and everybody else's sends go on."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

import skylark.sdk.producer.lane
import skylark.sdk.producer.pending
from skylark import blocking
from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE_V2
from skylark.sdk.producer import Producer
from tests.sdk.producer.test_producer import bodies, two_brokers
from tests.support.waiting import DEADLINE_S

BAD = b"bad"


def broken(topic: str, queue: MessageQueue) -> list[tuple[dict[str, Any], type[Exception], str]]:
    """(arguments of `send`, what it raises, part of the text)."""

    def boom(queues: object, message: object) -> MessageQueue:
        raise ZeroDivisionError("the caller's own")

    other = queue._replace(topic="other")
    good, spoilt_topic = Message(topic, b"x"), Message(topic, b"x")
    spoilt_topic.topic = "a b"
    return [
        ({"message": "a str"}, TypeError, "message must be a Message, not str 'a str'"),
        ({"message": b"bytes"}, TypeError, "message must be a Message"),
        ({"message": good, "timeout_ms": -1}, ValueError, "timeout_ms"),
        ({"message": good, "timeout_ms": float("nan")}, ValueError, "timeout_ms"),
        ({"message": good, "timeout_ms": "3"}, TypeError, "timeout_ms"),
        ({"message": good, "queue": 3}, TypeError, "queue must be a MessageQueue, not int 3"),
        ({"message": good, "queue": ("t", "broker-a", 0)}, TypeError, "queue must be a MessageQueue"),
        ({"message": good, "queue": other}, ValueError, "queue must be a queue of topic 't'"),
        ({"message": good, "selector": 5}, TypeError, "selector must be a function"),
        ({"message": good, "selector": lambda queues, message: 7}, TypeError, "the result of selector must be"),
        ({"message": good, "selector": lambda queues, message: None}, TypeError, "the result of selector must be"),
        ({"message": good, "selector": lambda queues, message: other}, ValueError, "the result of selector must be"),
        ({"message": good, "selector": lambda queues: queues[0]}, TypeError, "positional argument"),
        ({"message": good, "selector": boom}, ZeroDivisionError, "the caller's own"),
        ({"message": spoilt_topic}, ValueError, "message.topic is str 'a b'"),
    ]


async def test_a_bad_argument_is_refused_while_good_sends_go_on() -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer, trio.open_nursery() as nursery:
        queue = (await producer.queues("t"))[0]
        for number, (arguments, error, text) in enumerate(broken("t", queue)):
            nursery.start_soon(producer.send, Message("t", b"%d" % number))
            with pytest.raises(error, match=text):
                await producer.send(**arguments)
        count = len(broken("t", queue))
        nursery.start_soon(producer.send, Message("t", b"last"))
        with trio.fail_after(DEADLINE_S):
            while len(bodies(a, b)) <= count:
                await trio.lowlevel.checkpoint()
    assert sorted(bodies(a, b)) == sorted([*(b"%d" % number for number in range(count)), b"last"])


async def test_a_bad_argument_in_a_thread_is_refused_in_that_call() -> None:
    def use(names: str) -> None:
        with blocking.Producer(names) as producer:
            queue = producer.queues("t")[0]
            for arguments, error, text in broken("t", queue):
                with pytest.raises(error, match=text):
                    producer.send(**arguments)
            with pytest.raises(TypeError, match=r"messages\[0\] must be bytes or a Message, not str 'abc'"):
                producer.send_many("t", ["abc"])  # type: ignore[list-item]
            assert producer.send(Message("t", b"good")).queue.topic == "t"

    async with two_brokers() as (names, a, b):
        await trio.to_thread.run_sync(use, names)
        assert bodies(a, b) == [b"good"]


@pytest.mark.parametrize(("attribute", "value"), [("body", "a str"), ("body", None), ("topic", 5), ("topic", [])])
async def test_a_message_that_was_spoilt_after_it_was_made_fails_alone(attribute: str, value: object) -> None:
    failed: list[Exception] = []

    async def send(producer: Producer, message: Message) -> None:
        try:
            await producer.send(message)
        except Exception as error:
            assert message.body != b"good"
            failed.append(error)

    bad = Message("t", BAD)
    setattr(bad, attribute, value)
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        await producer.send(Message("t", b"good"))
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(send, producer, Message("t", b"good") if number != 7 else bad)
        await producer.send(Message("t", b"good"))
        assert len(failed) == 1 and bodies(a, b) == [b"good"] * 21


async def test_send_many_refuses_what_it_is_not_for() -> None:
    async with two_brokers() as (names, a, b), Producer(names, max_message_bytes=100) as producer:
        good = [b"x"] * 3_000
        for messages, error, text in [
            ("abc", TypeError, "messages must be an iterable of bytes and Messages, not str 'abc'"),
            (b"abc", TypeError, "messages must be an iterable"),
            (5, TypeError, "messages must be an iterable"),
            (Message("t", b""), TypeError, "messages must be an iterable"),
            (["abc"], TypeError, r"messages\[0\] must be bytes or a Message, not str 'abc'"),
            ([*good, None], TypeError, r"messages\[3000\] must be bytes or a Message, not None"),
            ([*good, Message("u", b"")], ValueError, r"messages\[3000\] must be of topic 't', not of 'u'"),
            ((*good, bytes(101)), ValueError, r"messages\[3000\] has 101 bytes, at most 100"),
            ([Message("t", bytes(101))], ValueError, r"messages\[0\].body has 101 bytes, at most 100"),
        ]:
            with pytest.raises(error, match=text):
                await producer.send_many("t", messages)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="topic"):
            await producer.send_many("a b", good)
        assert not bodies(a, b), "lists are looked at before anything is sent"
        with pytest.raises(TypeError, match=r"messages\[3000\] must be bytes"):
            await producer.send_many("t", iter([*good, None]))  # type: ignore[list-item]
        assert len(await producer.send_many("t", good)) == 3_000
        assert len(await producer.send_many("t", [])) == 0


async def test_what_an_iterable_raises_is_raised_as_it_is() -> None:
    def failing() -> Iterator[bytes]:
        yield b"x"
        raise KeyError("the caller's own")

    async with two_brokers() as (names, _a, _b), Producer(names) as producer:
        with pytest.raises(KeyError, match="the caller's own"):
            await producer.send_many("t", failing())
        await producer.send(Message("t", b"x"))


# --- errors that nobody expects


class Boom(Exception):
    """An error that no code of Skylark raises."""


def once(real: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
    """``real``, but an error when ``when`` says so."""

    def maybe(*args: Any, **named: Any) -> Any:
        if when(*args):
            raise Boom
        return real(*args, **named)

    return maybe


async def send_all(producer: Producer, count: int) -> dict[int, BaseException | None]:
    """Send messages, of which number 7 is bad; number → the outcome of its send."""
    became: dict[int, BaseException | None] = {}

    async def send(number: int) -> None:
        try:
            await producer.send(Message("t", BAD if number == 7 else b"%d" % number))
            became[number] = None
        except Exception as error:
            became[number] = error

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(send, number)
    return became


def holds_bad(rows: Any) -> bool:
    return any(body == BAD for _, body, _ in rows)


@pytest.mark.parametrize("step", ["rows", "encoding"])
async def test_an_unexpected_error_is_that_messages_alone(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    lane, pending = skylark.sdk.producer.lane, skylark.sdk.producer.pending
    if step == "rows":
        making = once(pending.fresh_rows, lambda sends, keys: any(send.body == BAD for send in sends))
        monkeypatch.setattr(pending, "fresh_rows", making)
    else:
        encoding = once(lane.send_request, lambda group, queue, rows, *_: holds_bad(rows))
        monkeypatch.setattr(lane, "send_request", encoding)
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        became = await send_all(producer, 20)
        assert [number for number, error in became.items() if error] == [7] and isinstance(became[7], Boom)
        assert sorted(bodies(a, b)) == sorted(b"%d" % number for number in range(20) if number != 7)
        await producer.send(Message("t", b"after"))


@pytest.mark.parametrize("step", ["keys", "picking", "connecting", "submitting"])
async def test_an_unexpected_error_fails_what_waits_for_it_and_then_all_is_well(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async with two_brokers() as (names, _a, _b), Producer(names, start_timeout_ms=None) as producer:
        await producer.queues("t")
        calls = {
            "keys": (producer, "new_keys"),
            "picking": (producer, "route_of"),
            "connecting": (producer.remoting, "channel"),
            "submitting": (producer.remoting, "submit"),
        }
        target, name = calls[step]
        with monkeypatch.context() as patch:
            patch.setattr(target, name, once(getattr(target, name), lambda *args: True))
            if step == "picking":
                # Whoever makes the lane reads the route, too; this is about the lane's task.
                with pytest.raises(Boom):
                    await producer.send(Message("t", b"x"))
            else:
                became = await send_all(producer, 20)
                assert len(became) == 20 and all(isinstance(error, Boom) for error in became.values())
        became = await send_all(producer, 20)
        assert not any(became.values())


async def test_an_error_in_picking_is_raised_in_the_sends_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_brokers() as (names, _a, _b), Producer(names) as producer:
        await producer.send(Message("t", b"makes the lane"))
        with monkeypatch.context() as patch:
            patch.setattr("skylark.sdk.producer.routing.Turns.next", once(lambda: None, lambda *args: True))
            became = await send_all(producer, 20)
        assert len(became) == 20 and all(isinstance(error, Boom) for error in became.values())
        assert not any((await send_all(producer, 20)).values())


@pytest.mark.parametrize("bad_field", [{"queueId": []}, {"queueId": "x"}, {"msgId": "zz"}, {"msgId": None}])
async def test_an_answer_that_cannot_be_read_fails_its_sends(bad_field: dict[str, Any]) -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        for broker in (a, b):
            for code in (SEND_MESSAGE_V2.code, SEND_BATCH_MESSAGE.code):
                broker.on(code, lambda request, real=broker.answer: spoilt(real(request), bad_field))
        became = await send_all(producer, 5)
        assert all(isinstance(error, SkylarkError) for error in became.values()), became
        assert len(bodies(a, b)) == 5, "what may be stored is not sent again"
        for broker in (a, b):
            for code in (SEND_MESSAGE_V2.code, SEND_BATCH_MESSAGE.code):
                broker.on(code, broker.answer)
        assert not any((await send_all(producer, 5)).values())


def spoilt(answer: Command | None, fields: dict[str, Any]) -> Command:
    assert answer is not None
    answer.ext = {**(answer.ext or {}), **fields}
    return answer


async def test_an_unexpected_error_with_an_answer_is_raised_in_its_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_brokers() as (names, a, b), Producer(names) as producer:
        await producer.send(Message("t", b"x"))
        with monkeypatch.context() as patch:
            patch.setattr(skylark.sdk.producer.lane, "stored", once(lambda: None, lambda *args: True))
            became = await send_all(producer, 10)
            assert all(isinstance(error, Boom) for error in became.values())
            with pytest.raises(Boom):
                await producer.send_many("t", [b"y"])
        assert len(bodies(a, b)) == 12, "what may be stored is not sent again"
        assert not any((await send_all(producer, 10)).values())


@pytest.mark.parametrize("task", ["routes", "heartbeat", "probe"])
async def test_an_error_in_a_background_task_is_logged_and_the_client_goes_on(
    monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    logged = trio.Event()
    monkeypatch.setattr(logging.getLogger("skylark.sdk.runtime"), "exception", lambda *args: logged.set())
    async with two_brokers() as (names, a, _b), Producer(names) as producer:
        await producer.send(Message("t", b"x"))
        client = producer._client.instance
        with monkeypatch.context() as patch, trio.fail_after(DEADLINE_S):
            if task == "heartbeat":
                patch.setattr(client.membership, "heartbeat_data", once(lambda: None, lambda *args: True))
                client.membership.subscription_changed()
                client.tell_brokers()
            elif task == "routes":
                patch.setattr(client, "fetch_route", once(lambda: None, lambda *args: True))
                with pytest.raises(Boom):
                    await client.refresh("t")
                producer.brokers.want_route("t")
            else:
                patch.setattr("skylark.sdk.suspects.answers", once(lambda: None, lambda *args: True))
                producer.brokers.suspect(a.addr)
            await logged.wait()
        await producer.send(Message("t", b"y"))


async def test_a_client_that_is_closed_says_so() -> None:
    async with two_brokers() as (names, _a, _b):
        async with Producer(names) as producer:
            await producer.send(Message("t", b"x"))
        with trio.fail_after(DEADLINE_S):
            for call in (
                lambda: producer.send(Message("t", b"x")),
                lambda: producer.send(Message("t", b"x", sharding_key="k")),
                lambda: producer.send_many("t", [b"x"]),
                lambda: producer.send_oneway(Message("t", b"x")),
                lambda: producer.queues("t"),
            ):
                with pytest.raises(SkylarkError, match="the client was closed"):
                    await call()
