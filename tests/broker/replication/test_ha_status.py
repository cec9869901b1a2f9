"""907 and 908, on a master and on a slave."""

from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import CBOR, JSON
from remoting.protocol.dialect import decode_body
from remoting.protocol.requests.brokers import (
    GET_BROKER_HA_STATUS,
    RESET_MASTER_FLUSH_OFFSET,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)
from tests.broker.desk import Desk
from tests.broker.meta.support import options
from tests.broker.store.support import put


async def status(desk: Desk, codec: int = JSON) -> HARuntimeInfo:
    answer = await desk.ask(GET_BROKER_HA_STATUS.code, codec=codec)
    assert answer.code == 0
    return decode_body(HARuntimeInfo, answer.body, codec)


def slave_desk() -> Desk:
    return Desk(options(broker_role="SLAVE", broker_id=1))


async def test_a_master_tells_of_its_slaves() -> None:
    desk = Desk()
    assert await status(desk) == HARuntimeInfo(True)
    put(desk.store, "t", 0, b"hello")
    end = desk.store.log.end
    slave = desk.acks.connected("10.0.0.1:40000", 0.0)
    desk.acks.acked("10.0.0.1:40000", end - 10)
    slave.next_offset = end - 3
    desk.acks.connected("10.0.0.2:40000", 0.0)
    expected = HARuntimeInfo(
        True,
        end,
        1,
        [
            HAConnectionRuntimeInfo("10.0.0.1:40000", end - 10, 10, True, 0, end - 3),
            HAConnectionRuntimeInfo("10.0.0.2:40000", -1, end, False, 0, 0),
        ],
    )
    assert await status(desk) == expected
    assert await status(desk, CBOR) == expected


async def test_a_slave_tells_of_its_master() -> None:
    desk = slave_desk()
    put(desk.store, "t", 0, b"hello")
    desk.progress.master_addr = "10.0.0.9:10912"
    desk.ha.tick()
    desk.progress.received_bytes = 5000
    desk.progress.last_read_ms, desk.progress.last_write_ms = 7, 8
    desk.clock.advance(2000)
    desk.ha.tick()
    client = HAClientRuntimeInfo("10.0.0.9:10912", 2500, desk.store.log.end, 7, 8, 0)
    assert await status(desk) == HARuntimeInfo(False, ha_client_runtime_info=client)


async def test_the_masters_flush_offset_is_set_on_a_slave_only() -> None:
    desk = slave_desk()
    ext = {"masterFlushOffset": "4711"}
    assert (await desk.ask(RESET_MASTER_FLUSH_OFFSET.code, ext)).code == 0
    assert (await status(desk)).ha_client_runtime_info.master_flush_offset == 4711
    master = Desk()
    assert (await master.ask(RESET_MASTER_FLUSH_OFFSET.code, ext)).code == 0
    assert master.progress.master_flush_offset == 0


async def test_an_offset_that_is_none_is_refused() -> None:
    desk = slave_desk()
    answer = await desk.ask(RESET_MASTER_FLUSH_OFFSET.code, {"masterFlushOffset": -1})
    assert answer.code == ResponseCode.INVALID_PARAMETER
    answer = await desk.ask(RESET_MASTER_FLUSH_OFFSET.code)
    assert answer.code == ResponseCode.SYSTEM_ERROR and "<masterFlushOffset> is null" in (answer.remark or "")


async def test_broker_status_says_who_is_active() -> None:
    assert Desk().runtime()["brokerActive"] == "true"
    assert slave_desk().runtime()["brokerActive"] == "false"
