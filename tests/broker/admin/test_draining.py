"""A drained broker says what is left, takes no sends when clients have had their time, and knows both after a crash."""

from types import SimpleNamespace
from typing import Any

import pytest

from skylark.broker.admin.draining import Draining
from skylark.broker.meta.topics import Drain
from skylark.broker.writing.admission import Admission, Reason
from skylark.mqcommon.errors import BrokerError
from skylark.mqcommon.names import DLQ_RESENT_TOPIC, TOOLS_GROUP
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.requests.offsets import UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequestHeader
from skylark.remoting.protocol.requests.shrinking import (
    DRAIN_BROKER,
    GET_CLOSED_QUEUES,
    GET_DRAIN_STATUS,
    SEAL_QUEUES,
    DrainBrokerRequestHeader,
    DrainStatus,
    GetClosedQueuesRequestHeader,
    GetDrainStatusRequestHeader,
    SealQueuesRequestHeader,
)
from tests.broker.meta.support import MetadataDir, options
from tests.broker.running import pull_request, running, send_request
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

DELAYED, TIMED = "DELAY\x0118\x02", "TIMER_DELAY_SEC\x011000\x02"
HALF = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01k\x02"


async def status(client: RemotingClient, addr: str, forgotten: str = "") -> DrainStatus:
    return (await call(Remote(client, addr, 5_000), GET_DRAIN_STATUS, GetDrainStatusRequestHeader(forgotten))).body()


async def drain(client: RemotingClient, addr: str, settle_ms: int = 0, *, drains: bool = True) -> None:
    await call(Remote(client, addr, 5_000), DRAIN_BROKER, DrainBrokerRequestHeader(drains, settle_ms))


async def send(client: RemotingClient, addr: str, **fields: Any) -> int:
    return (await client.invoke(addr, send_request("t", b"x", **fields))).code


async def test_what_waits_is_counted_and_still_after_a_crash() -> None:
    fs = MemoryFiles()
    async with running(fs, transaction_check_interval=1_000_000) as (client, addr):
        for properties, more in ((DELAYED, {}), (TIMED, {}), (HALF, {"f": 4}), ("", {})):
            assert await send(client, addr, properties=properties, **more) == 0
        await drain(client, addr)
        found = await status(client, addr)
        assert (found.delayed, found.timed, found.half, found.unread_total) == (1, 1, 1, 0)
        assert [(row.topic, row.messages) for row in found.unclaimed] == [("t", 1)]
        assert await send(client, addr) == 14
        image = fs.killed()
    async with running(image) as (client, addr):
        again = await status(client, addr)
        assert again.drained_since == found.drained_since
        assert (again.delayed, again.timed, again.half) == (1, 1, 1)
        assert await send(client, addr) == 14
        await drain(client, addr, drains=False)
        assert await send(client, addr) == 0


async def test_sends_are_taken_for_a_while() -> None:
    async with running() as (client, addr):
        await drain(client, addr, settle_ms=60_000)
        assert await send(client, addr) == 0
        assert 0 < (await status(client, addr)).closes_in_ms <= 60_000
        with pytest.raises(BrokerError, match="negative"):
            await drain(client, addr, settle_ms=-1)


async def test_a_drained_broker_still_notes_which_dead_letters_were_sent_again() -> None:
    async with running() as (client, addr):
        await drain(client, addr)
        assert await send(client, addr) == 14
        assert (await client.invoke(addr, send_request(DLQ_RESENT_TOPIC, b"{}"))).code == 0
        assert (await status(client, addr)).unread == []


@pytest.mark.parametrize("set_by_ms", [-3_600_000, 3_600_000])
def test_a_clock_that_is_set_closes_a_drain_neither_sooner_nor_later(set_by_ms: int) -> None:
    clock, admission = ManualClock(), Admission()
    meta = MetadataDir(options(), clock=clock)
    unused: Any = None
    writer: Any = SimpleNamespace(admission=admission)
    part = Draining(unused, meta.metadata, unused, writer, unused, unused, clock)
    meta.topics.drain.put(Drain(clock.now_ms(), clock.now_ms() + 60_000))
    part.tick()
    clock.set_by(set_by_ms)
    clock.advance(59_000)
    part.tick()
    assert not admission.holds(Reason.DRAIN)
    clock.advance(1_000)
    part.tick()
    assert admission.holds(Reason.DRAIN)


async def test_the_group_of_the_tools_need_not_read_on() -> None:
    async with running() as (client, addr):
        for _ in range(5):
            await send(client, addr)
        header = UpdateConsumerOffsetRequestHeader(TOOLS_GROUP, "t", 0, 2)
        await call(Remote(client, addr, 5_000), UPDATE_CONSUMER_OFFSET, header)
        await drain(client, addr)
        found = await status(client, addr)
        assert (found.unread_total, found.is_over) == (0, True)
        # It has no other reader.
        assert [(row.topic, row.messages) for row in found.unclaimed] == [("t", 5)]
        await call(Remote(client, addr, 5_000), SEAL_QUEUES, SealQueuesRequestHeader("t", 0))
        closed = await call(Remote(client, addr, 5_000), GET_CLOSED_QUEUES, GetClosedQueuesRequestHeader("t", 0))
        assert {row.group for row in closed.body().unread} <= {""}


async def test_groups_must_read_on_and_a_seal_hides_the_rest() -> None:
    async with running() as (client, addr):
        for _ in range(5):
            await send(client, addr)
        header = UpdateConsumerOffsetRequestHeader("group", "t", 0, 2)
        await call(Remote(client, addr, 5_000), UPDATE_CONSUMER_OFFSET, header)
        await drain(client, addr)
        (row,) = (await status(client, addr)).unread
        assert (row.group, row.unread, row.is_online) == ("group", 3, False)
        assert (await status(client, addr, "other,group")).unread_total == 0
        sealing = SealQueuesRequestHeader("t", 0)
        (sealed,) = (await call(Remote(client, addr, 5_000), SEAL_QUEUES, sealing)).body().queues
        assert (sealed.limit, sealed.moved_to, sealed.end) == (2, 2, 5)
        answer = await client.invoke(addr, pull_request("t", 2))
        assert answer.code == 19
        # A group that commits more than the broker knew of moves the seal, as long as nothing was copied.
        header.commit_offset = 4
        await call(Remote(client, addr, 5_000), UPDATE_CONSUMER_OFFSET, header)
        (sealed,) = (await call(Remote(client, addr, 5_000), SEAL_QUEUES, sealing)).body().queues
        assert (sealed.limit, sealed.moved_to, sealed.end) == (4, 4, 5)
        found = await status(client, addr)
        assert (found.unmoved, found.unread_total, found.is_over) == (1, 0, False)
