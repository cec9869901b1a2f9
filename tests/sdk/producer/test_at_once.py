"""A send that comes alone leaves from its sender's own task."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mqcommon.errors import ConnectionLost, FrameTooLarge, SendFailed
from mqcommon.message.message import Message
from mqcommon.message.queue import MessageQueue
from remoting.net.channel import Answered
from remoting.protocol.command import Command
from sdk.producer.pending import PendingSend
from tests.sdk.producer.lanes import LOSING, REFUSING, Sender, a_lane

QUEUES = pytest.mark.parametrize("queue", [None, MessageQueue("t", "a", 0)])


def add(sender: Sender, body: bytes) -> PendingSend:
    send = PendingSend(Message("t", body), None, 3, trio.lowlevel.current_task())
    sender.lane.add(send)
    return send


async def result_of(send: PendingSend) -> Any:
    return await trio.lowlevel.wait_task_rescheduled(send.abort)


@QUEUES
async def test_a_send_after_a_lone_one_is_submitted_before_other_tasks_run(
    autojump_clock: MockClock, queue: MessageQueue | None
) -> None:
    async with a_lane("a", queue=queue) as sender:
        await sender.send(b"first")
        for number in range(3):
            send = add(sender, b"%d" % number)
            assert len(sender.cluster.tries) == number + 2
            assert (await result_of(send)).tries == 1
        assert [body for _, body in sender.cluster.stored] == [b"first", b"0", b"1", b"2"]


async def test_sends_of_one_turn_become_a_batch(autojump_clock: MockClock) -> None:
    async with a_lane("a") as sender:
        await sender.send(b"first")
        for _ in range(3):
            before = len(sender.cluster.tries)
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(sender.send, b"%d" % number)
            # One may have left alone, before the others came.
            assert len(sender.cluster.tries) <= before + 2
        assert not sender.errors


async def test_brokers_take_turns(autojump_clock: MockClock) -> None:
    async with a_lane("a", "b") as sender:
        for number in range(10):
            await sender.send(b"%d" % number)
        addrs = [addr for addr, _ in sender.cluster.stored]
        assert addrs.count("a:1") == addrs.count("b:1") == 5


@QUEUES
@pytest.mark.parametrize("act", [LOSING, REFUSING, 2])
async def test_a_failure_is_retried(autojump_clock: MockClock, queue: MessageQueue | None, act: int) -> None:
    async with a_lane("a", queue=queue) as sender:
        await sender.send(b"first")
        sender.cluster.acts["a:1"] = act
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.send, b"second")
            await trio.sleep(0.01)
            sender.cluster.acts["a:1"] = 0
        assert sender.results[b"second"].tries > 1


@pytest.mark.parametrize("error", [FrameTooLarge(9, 8), ValueError("bad"), ConnectionLost("a:1")])
async def test_an_error_of_the_request_is_raised_in_its_sender(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async with a_lane("a") as sender:
        await sender.send(b"first")

        def submit(*_: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(sender.cluster, "submit", submit)
            with pytest.raises(ValueError if isinstance(error, ValueError) else SendFailed):
                await result_of(add(sender, b"second"))
        await sender.send(b"third")
        assert [body for _, body in sender.cluster.stored] == [b"first", b"third"]


async def test_a_cancelled_sender_leaves_the_lane_as_it_was(autojump_clock: MockClock) -> None:
    async with a_lane("a") as sender:
        await sender.send(b"first")
        with trio.CancelScope() as scope:
            scope.cancel()
            await result_of(add(sender, b"second"))
        assert scope.cancelled_caught
        await sender.send(b"third")
        # Of two requests in flight any may be stored first.
        assert sorted(body for _, body in sender.cluster.stored) == [b"first", b"second", b"third"]


async def test_a_request_that_fails_while_it_is_queued_is_sent_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it is one too many for the buffer of its connection, which is closed then."""
    async with a_lane("a") as sender:
        await sender.send(b"first")
        submit = sender.cluster.submit

        def overflow(addr: str, command: Command, timeout_ms: float, answered: Answered) -> None:
            monkeypatch.setattr(sender.cluster, "submit", submit)
            answered(ConnectionLost(addr))

        monkeypatch.setattr(sender.cluster, "submit", overflow)
        with trio.fail_after(60):
            await result_of(add(sender, b"second"))
        assert [body for _, body in sender.cluster.stored] == [b"first", b"second"]
