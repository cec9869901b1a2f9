"""A whole broker that a Controller elected: what its producers are answered, and what its consumers see."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from skylark.broker.broker import Broker
from skylark.broker.options import BrokerOptions
from skylark.broker.store.store import MessageStore
from skylark.broker.wiring.core import Core, make_core
from skylark.broker.writing.elected import Elected
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.offsets import GET_MAX_OFFSET, GetMaxOffsetRequestHeader
from skylark.remoting.protocol.requests.query import QUERY_MESSAGE, VIEW_MESSAGE_BY_ID
from tests.broker.delivery.pop.support import Popper, bodies
from tests.broker.running import SMALL, pull_request, send_request
from tests.broker.test_send_pull import messages
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

FOUND, NOT_FOUND, MOVED = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED
# Longer than a test may take: nothing here ends with its time.
HELD_MS = 600_000


@dataclass
class Set:
    """The broker, what the Controller told it, and a client."""

    elected: Elected
    store: MessageStore
    client: RemotingClient
    addr: str

    async def send(self, body: bytes, **fields: Any) -> Command:
        return await self.client.invoke(self.addr, send_request("t", body, **fields))

    async def pull(self, offset: int, topic: str = "t", **fields: Any) -> Command:
        return await self.client.invoke(self.addr, pull_request(topic, offset, **fields), HELD_MS)

    async def ends(self) -> tuple[int, int]:
        """The end of the queue for consumers, and its real end."""
        at = Remote(self.client, self.addr, 30_000)
        headers = GetMaxOffsetRequestHeader("t", 0), GetMaxOffsetRequestHeader("t", 0, committed=False)
        visible, real = [(await call(at, GET_MAX_OFFSET, header)).header().offset for header in headers]
        return visible, real

    def confirm_all(self) -> None:
        self.elected.confirmed(self.store.log.end)


@asynccontextmanager
async def elected_broker(
    monkeypatch: pytest.MonkeyPatch, *, all_ack: bool = False, **options: Any
) -> AsyncIterator[Set]:
    """An elected broker that has a lease, and nothing is confirmed."""
    elected, cores = Elected(trio.current_time), list[Core]()
    elected.lease_until = trio.current_time() + HELD_MS

    def make(*parts: Any, **_: Any) -> Core:
        cores.append(make_core(*parts, elected=elected))
        return cores[0]

    monkeypatch.setattr("skylark.broker.broker.make_core", make)
    broker = Broker(BrokerOptions(**{**SMALL, "in_sync_replicas": 1, **options}), fs=MemoryFiles())
    object.__setattr__(broker.options, "all_ack_in_sync_state_set", all_ack)
    async with trio.open_nursery() as nursery, open_client() as client:
        addr = await nursery.start(broker.run)
        yield Set(elected, cores[0].store, client, addr)
        broker.stop()


def place(answer: Command) -> tuple[int, int, int]:
    """(code, where to go on, the end of the queue)"""
    assert answer.ext is not None
    return answer.code, int(answer.ext["nextBeginOffset"]), int(answer.ext["maxOffset"])


async def test_a_message_that_is_not_confirmed_is_seen_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    async with elected_broker(monkeypatch) as own:
        sent = [await own.send(b"%d" % number, properties="KEYS\x01k\x02") for number in range(3)]
        assert [answer.code for answer in sent] == [0, 0, 0]
        own.elected.confirmed(own.store.log.end - 1)
        assert await own.ends() == (2, 3)
        assert place(await own.pull(2)) == (NOT_FOUND, 2, 2)
        assert place(await own.pull(3)) == (NOT_FOUND, 3, 2), "a reader there waits, and is not sent back"
        assert place(await own.pull(4)) == (MOVED, 2, 2)
        answer = await own.pull(0)
        assert place(answer) == (FOUND, 2, 2)
        assert [message.body for message in messages(answer)] == [b"0", b"1"]
        query = Command(QUERY_MESSAGE.code, {
            "topic": "t", "key": "k", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 50,
        })  # fmt: skip
        found = await own.client.invoke(own.addr, query)
        assert sorted(message.body for message in messages(found)) == [b"0", b"1"]
        physical = own.store.queues.get("t", 0).entry(2)[0]
        view = Command(VIEW_MESSAGE_BY_ID.code, {"offset": physical})
        assert (await own.client.invoke(own.addr, view)).code == ResponseCode.SYSTEM_ERROR
        own.confirm_all()
        assert place(await own.pull(2)) == (FOUND, 3, 3)
        assert (await own.client.invoke(own.addr, view)).code == 0


@pytest.mark.parametrize("subscription", ["*", "a || b"])
async def test_a_held_pull_is_answered_when_its_message_is_confirmed(
    monkeypatch: pytest.MonkeyPatch, subscription: str
) -> None:
    async with elected_broker(monkeypatch) as own:
        await own.send(b"makes the topic", properties="TAGS\x01a\x02")
        own.confirm_all()
        answers: list[Command] = []

        async def pull() -> None:
            answers.append(await own.pull(1, wait_ms=HELD_MS, subscription=subscription))

        async with trio.open_nursery() as nursery:
            await own.send(b"came before the pull", properties="TAGS\x01a\x02")
            nursery.start_soon(pull)
            await until(lambda: own.store.queues.get("t", 0).is_awaited, "a held pull")
            end = own.store.log.end
            await own.send(b"came after it", properties="TAGS\x01a\x02")
            own.elected.confirmed(end - 1)
            assert place(await own.pull(1)) == (NOT_FOUND, 1, 1)
            assert answers == []
            own.elected.confirmed(end)
        assert [message.body for message in messages(answers[0])] == [b"came before the pull"]


async def test_a_pop_finds_what_is_confirmed_and_waits_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async with elected_broker(monkeypatch) as own:
        popper = Popper(own.client, own.addr, topic="t")
        await popper.send(b"a")
        own.confirm_all()
        await popper.send(b"b")
        end = own.store.log.end
        assert bodies(await popper.pop()) == [b"a"]
        assert await popper.pop() == []
        popped: list[Any] = []

        async def pop() -> None:
            popped.extend(await popper.pop(poll_time=HELD_MS))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pop)
            await until(lambda: own.store.queues.get("t", 0).is_awaited, "a held pop")
            own.elected.confirmed(end)
        assert bodies(popped) == [b"b"]


async def test_a_light_queue_shows_what_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with elected_broker(monkeypatch, enable_multi_dispatch=True, enable_lmq=True) as own:
        light = "%LMQ%mine"
        for body in (b"a", b"b"):
            assert (await own.send(body, properties=f"INNER_MULTI_DISPATCH\x01{light}\x02")).code == 0
        own.elected.confirmed(own.store.log.end - 1)
        assert own.store.visible_end(light, 0) == 1
        assert own.store.max_offset(light, 0) == 2


async def test_a_send_waits_for_all_members_of_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    async with elected_broker(monkeypatch, all_ack=True) as own:
        answers: list[Command] = []

        async def send() -> None:
            answers.append(await own.send(b"x"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await until(lambda: own.store.max_offset("t", 0) == 1, "the message")
            assert (await own.send(b"does not wait", properties="WAIT\x01false\x02")).code == 0
            assert answers == []
            own.elected.confirmed(own.store.queues.get("t", 0).entry(1)[0])
        assert answers[0].code == 0


async def test_without_its_lease_it_takes_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async with elected_broker(monkeypatch) as own:
        own.elected.lease_until = trio.current_time()
        for properties in ("", "WAIT\x01false\x02"):
            answer = await own.send(b"x", properties=properties)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert answer.remark is not None and "the Controller has not confirmed" in answer.remark
        assert own.store.log.end == 0


async def test_too_small_a_set_takes_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async with elected_broker(monkeypatch, min_in_sync_replicas=2, in_sync_replicas=2) as own:
        answer = await own.send(b"x")
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
