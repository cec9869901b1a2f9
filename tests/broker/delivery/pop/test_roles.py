"""Pops in a set of brokers: answered by the master only; a slave that becomes the master goes on from its log."""

from functools import partial

import pytest
import trio

from skylark.broker.registration import registrar as registrar_module
from skylark.broker.replication import slave as slave_module
from skylark.broker.replication.role import RoleKind
from skylark.mqcommon.errors import BrokerError
from skylark.remoting.protocol.codes import ResponseCode
from tests.broker.delivery.pop.support import WAIT_MS, Popper, bodies
from tests.broker.replication.sets import SLAVE, Running, broker, namesrv
from tests.broker.running import send_request
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar_module, "MASTERLESS_S", 0.02)
    monkeypatch.setattr(slave_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(slave_module, "MAX_PAUSE_S", 0.05)


async def send(member: Running, topic: str) -> bool:
    answer = await member.client.invoke(member.addr, send_request(topic, b"x"), 10_000)
    return answer.code == ResponseCode.SUCCESS


async def held(popper: Popper, code: list[int]) -> None:
    try:
        await popper.pop(poll_time=WAIT_MS)
    except BrokerError as error:
        code.append(error.code)


async def test_a_promoted_slave_knows_what_is_popped_and_what_is_acknowledged() -> None:
    async with (
        namesrv() as addr,
        broker(namesrv_addr=addr, broker_role="SYNC_MASTER", total_replicas=2) as one,
        broker(namesrv_addr=addr, **SLAVE) as two,
    ):
        await until(partial(send, one, "W"), "the slave follows")
        popper, successor = Popper(one.client, one.addr), Popper(two.client, two.addr)
        await popper.send(b"a", b"b", b"c", b"d")
        popped = await popper.pop(max_msg_nums=3)
        await popper.ack(popped[0])

        async def slave_refuses() -> bool:
            with pytest.raises(BrokerError) as refused:
                await successor.pop()
            # Until its tables are copied it does not know the topic.
            return refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE

        await until(slave_refuses, "the slave knows the topic")
        codes: list[int] = []
        async with trio.open_nursery() as nursery:
            other = Popper(one.client, one.addr, topic="W", group="other")
            assert await other.pop()
            nursery.start_soon(held, other, codes)
            await other.until_held(1)
            one.broker.role.demoted(2)
        assert codes == [ResponseCode.SERVICE_NOT_AVAILABLE], "the consumer may ask the new master now"
        with pytest.raises(BrokerError) as caught:
            await popper.ack(popped[1])
        assert caught.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await until(lambda: two.log_end == one.log_end, "the slave has all")
        two.broker.role.promoted()
        await until(lambda: two.broker.role.now.kind is RoleKind.MASTER, "it took over")
        await until(partial(send, two, "W"), "the other one follows")
        await successor.ack(popped[1])
        assert bodies(await successor.pop()) == [b"d"]
        await successor.hide(popped[2], 1)
        assert bodies(await successor.pop(poll_time=WAIT_MS)) == [b"c"]
