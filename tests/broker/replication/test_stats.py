"""How far slaves are behind, in bytes and in time."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.options import BrokerOptions
from skylark.broker.replication.stats import AWAY_MS, EndTimes, ReplicationStats
from skylark.broker.writing.durability import Durability
from skylark.broker.writing.waits import AckLedger, LogWaits
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, JSON
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.brokers import (
    GET_BROKER_HA_STATUS,
    RESET_MASTER_FLUSH_OFFSET,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)
from tests.broker.desk import Desk
from tests.broker.meta.support import options
from tests.broker.store.support import put
from tests.broker.writing.support import Answers
from tests.support.clock import ManualClock

SLAVE = "10.0.0.1:40000"


class Master:
    def __init__(self) -> None:
        self.clock, self.acks, self.end = ManualClock(), AckLedger(1000), 0
        self.durability = Durability(LogWaits(), self.acks, BrokerOptions(broker_role="SYNC_MASTER"), double_write=True)
        self.stats = ReplicationStats(self.acks, self.durability, lambda: self.end, self.clock)

    def second(self, size: int) -> None:
        """The log grows, and a second goes by."""
        self.end += size
        self.stats.sample()
        self.clock.advance(1000)


def test_a_slave_that_falls_behind_and_catches_up() -> None:
    master = Master()
    slave = master.acks.connected(SLAVE, 0.0, "10.0.0.1:10911")
    master.second(100)
    master.acks.acked(SLAVE, 100)
    for _ in range(20):
        master.second(100)
    (state,) = master.stats.slaves()
    assert (state.acked, state.behind_bytes, state.behind_ms) == (100, 2000, 20_000)
    assert (state.in_sync, state.broker_addr) == (False, "10.0.0.1:10911")
    master.acks.acked(SLAVE, 1600)
    slave.next_offset, slave.sent_bytes = 1700, 1600
    master.second(0)
    (state,) = master.stats.slaves()
    assert (state.behind_bytes, state.behind_ms, state.in_sync) == (500, 6_000, True)
    assert (state.next_offset, state.bytes_per_second) == (1700, 160)
    master.acks.acked(SLAVE, 2100)
    (state,) = master.stats.slaves()
    assert (state.behind_bytes, state.behind_ms) == (0, 0)


def test_a_slave_that_came_just_now() -> None:
    master = Master()
    master.second(70)
    master.acks.connected(SLAVE, 0.0)
    (state,) = master.stats.slaves()
    assert (state.acked, state.behind_bytes, state.in_sync, state.bytes_per_second) == (-1, 70, False, 0)


def test_what_gone_slaves_left_is_forgotten() -> None:
    master = Master()
    for number in range(5):
        master.acks.connected(f"10.0.0.1:{number}", 0.0)
        master.second(1)
        master.acks.disconnected(f"10.0.0.1:{number}")
    master.second(1)
    assert master.stats.slaves() == [] and master.stats._sent == {}


def test_what_broker_status_tells() -> None:
    master = Master()
    master.second(70)
    Answers().wait(master.durability, 70)
    master.acks.connected(SLAVE, 0.0, "10.0.0.1:10911")
    master.acks.acked(SLAVE, 20)
    Answers().wait(master.durability, 70)
    Answers().wait(master.durability, 70)
    master.durability.expire(3.0)
    Answers().wait(master.durability, 70)
    assert master.stats.table() == {
        "sendsThatWait": "1",
        "slaveNotAvailableTimes": "1",
        "flushSlaveTimeoutTimes": "2",
        "slaveAckDiff_10.0.0.1:10911": "50",
        "slaveBehindMs_10.0.0.1:10911": "1000",
    }


def test_a_slave_that_is_away_is_told_for_a_day_if_it_gave_its_address() -> None:
    master = Master()
    for link, identity in ((SLAVE, "10.0.0.1:10911"), ("10.0.0.2:1", "")):
        master.acks.connected(link, 0.0, identity)
    master.second(1)
    away = "slaveAwayMs_10.0.0.1:10911"
    assert away not in master.stats.table()
    master.acks.disconnected(SLAVE)
    master.acks.disconnected("10.0.0.2:1")
    master.second(1)
    assert {key: value for key, value in master.stats.table().items() if "Away" in key} == {away: "2000"}
    master.acks.connected("10.0.0.1:2", 0.0, "10.0.0.1:10911")
    assert away not in master.stats.table()
    master.acks.disconnected("10.0.0.1:2")
    master.clock.advance(AWAY_MS)
    assert away not in master.stats.table()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 200))
def test_the_age_is_that_of_the_first_sample_beyond(sizes: list[int], offset: int) -> None:
    times, ends = EndTimes(max_samples=20), list[tuple[int, int]]()
    end = 0
    for second, size in enumerate(sizes):
        end += size
        if not ends or end > ends[-1][0]:
            ends.append((end, second))
        times.sample(end, second)
    now = len(sizes)
    beyond = [second for reached, second in ends[-20:] if reached > offset]
    assert times.behind_ms(offset, now) == (now - beyond[0] if beyond else 0)


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
