"""One task asks for everybody; a broker that does not answer costs a row, and no page."""

from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing

from skylark.mqcommon.errors import BrokerError, ConnectFailed
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqconsole.watching.checkup import FIRST_S, Checkup
from skylark.mqconsole.watching.checkup import INTERVAL_S as CHECKUP_S
from skylark.mqconsole.watching.collector import PATIENCE, TABLES_INTERVAL_S, Collector
from skylark.remoting.protocol.requests.groups import (
    ConsumeOffset,
    ConsumeStats,
    ConsumeStatsList,
    SubscriptionGroupTable,
)
from skylark.remoting.protocol.requests.routes import BrokerData, ClusterInfo
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicConfigTable
from skylark.sdk.admin.reports.findings import DoctorFinding

TIMEOUT_S, INTERVAL_S = 3.0, 5.0
GOOD, DEAD, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


class FakeAdmin:
    """Two sets: a master with a slave, and a master that may be dead. Counts what it is asked."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, str]] = Counter()
        self.silent: set[str] = set()
        self.broken: set[str] = set()
        self.no_namesrv = False
        self.unlisted: set[str] = set()
        self.refuses_stats = False
        self.stats_took_s = 0.0
        self.lag = 7
        self.consumed_per_s = 0

    async def cluster_info(self) -> ClusterInfo:
        self.asked["namesrv", "cluster_info"] += 1
        if self.no_namesrv:
            raise ConnectFailed("127.0.0.1:9876", "refused")
        brokers = {
            "broker-a": BrokerData("c", "broker-a", {0: GOOD, 1: SLAVE}),
            "broker-b": BrokerData("c", "broker-b", {0: DEAD}),
        }
        for one in brokers.values():
            one.broker_addrs = {key: addr for key, addr in one.broker_addrs.items() if addr not in self.unlisted}
        return ClusterInfo(brokers, {"c": ["broker-a", "broker-b"]})

    async def _answer(self, addr: str, what: str) -> None:
        self.asked[addr, what] += 1
        if addr in self.silent:
            await trio.sleep_forever()
        if addr in self.broken:
            raise ConnectFailed(addr, "refused")

    async def broker_runtime_info(self, addr: str) -> dict[str, str]:
        await self._answer(addr, "info")
        return {"putTps": "12.0 1 1", "getTransferredTps": "3.0 1 1", "commitLogMaxOffset": "100"}

    async def broker_consume_stats(self, addr: str) -> ConsumeStatsList:
        await self._answer(addr, "stats")
        if self.refuses_stats:
            raise BrokerError(16, "no permission", addr)
        await trio.sleep(self.stats_took_s)
        name = "broker-a" if addr in (GOOD, SLAVE) else "broker-b"
        queue = MessageQueue("orders", name, 0)
        at = 10 + int(trio.current_time() * self.consumed_per_s)
        offset = ConsumeOffset(broker_offset=at + self.lag, consumer_offset=at)
        return ConsumeStatsList(
            consume_stats_list=[{"shop": [ConsumeStats(consume_tps=2.5, offset_table={queue: offset})]}]
        )

    async def all_topic_config(self, addr: str) -> TopicConfigTable:
        await self._answer(addr, "topics")
        topics = [TopicConfig("orders", 4, 4), TopicConfig("%RETRY%shop", 1, 1)]
        return TopicConfigTable(topic_config_table={one.topic_name: one for one in topics})

    async def all_groups(self, addr: str) -> SubscriptionGroupTable:
        return SubscriptionGroupTable()

    async def broker_config(self, addr: str) -> dict[str, str]:
        return {}


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


async def watch(nursery: trio.Nursery, admin: Any) -> Collector:
    collector = Collector(admin, INTERVAL_S, TIMEOUT_S)
    await nursery.start(collector.run)
    return collector


async def test_a_dead_broker_makes_one_row_grey(
    admin: FakeAdmin, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    admin.silent = {DEAD}
    collector = await watch(nursery, admin)
    assert trio.current_time() <= TIMEOUT_S
    rows = {row.broker_addr: row for row in collector.snapshot.brokers}
    assert rows[DEAD].error == "no answer within 3 s" and rows[DEAD].away_since_ms is not None
    assert (rows[GOOD].error, rows[GOOD].load.in_tps) == (None, 12.0)
    assert [row.lag for row in collector.snapshot.groups] == [7]


async def test_a_master_that_the_nameservers_drop_keeps_its_row_and_its_lag(
    admin: FakeAdmin, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    collector = await watch(nursery, admin)
    assert collector.snapshot.away == [] and [row.lag for row in collector.snapshot.groups] == [14]
    admin.unlisted = {DEAD, SLAVE}
    snapshot = await collector.newer_than(collector.snapshot.version)
    assert [(one.title, one.is_since_known) for one in snapshot.away] == [
        (f"master broker-b at {DEAD}", True), (f"slave 1 of broker-a at {SLAVE}", True),
    ]  # fmt: skip
    row = snapshot.broker(DEAD)
    assert row is not None and row.away_since_ms is not None and "no longer list it" in (row.error or "")
    sets = {one.broker_name: one.has_master for one in snapshot.topology.clusters[0].sets}
    assert sets == {"broker-a": True, "broker-b": False}
    assert [row.lag for row in snapshot.groups] == [14]
    assert collector.broker_has_left(DEAD) and not collector.broker_has_left(GOOD)
    snapshot = await collector.newer_than(snapshot.version)
    assert snapshot.broker(DEAD) is None and [row.lag for row in snapshot.groups] == [7]


async def test_the_doctor_is_asked_seldom_and_when_a_broker_goes(
    admin: FakeAdmin, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    collector = await watch(nursery, admin)
    asked: list[float] = []
    finding = DoctorFinding("WARN", "clock", GOOD, "", "")

    async def ask() -> list[DoctorFinding]:
        asked.append(trio.current_time())
        await trio.sleep(1)
        if len(asked) == 3:
            raise ConnectFailed(GOOD, "refused")
        return [finding]

    checkup = Checkup(collector, ask)
    nursery.start_soon(checkup.run)
    await trio.sleep(FIRST_S + CHECKUP_S + 5)
    assert len(asked) == 2 and checkup.findings == [finding]
    admin.unlisted = {DEAD}
    await trio.sleep(PATIENCE + 2 * INTERVAL_S)
    assert len(asked) == 3 and checkup.findings == [finding]
    assert caplog.text.count("the doctor cannot look") == 1


async def test_a_dead_master_is_asked_of_its_slave(
    admin: FakeAdmin, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    admin.broken = {GOOD, DEAD}
    collector = await watch(nursery, admin)
    assert admin.asked[SLAVE, "stats"] == 1 and admin.asked[GOOD, "stats"] == 0
    assert [row.lag for row in collector.snapshot.groups] == [7]


async def test_brokers_are_asked_once_in_an_interval_however_many_look(
    admin: FakeAdmin, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    collector = await watch(nursery, admin)
    seen: list[int] = []

    async def look() -> None:
        version = 0
        while True:
            version = (await collector.newer_than(version)).version
            seen.append(version)

    for _ in range(50):
        nursery.start_soon(look)
    began = dict(admin.asked)
    await trio.sleep(INTERVAL_S * 10 + 0.1)
    assert admin.asked[GOOD, "info"] - began[GOOD, "info"] == 10
    assert admin.asked[GOOD, "stats"] - began[GOOD, "stats"] == 10
    assert len(seen) >= 50 * 10


async def test_topics_are_asked_for_seldom_and_after_a_change(
    admin: FakeAdmin, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    collector = await watch(nursery, admin)
    await trio.sleep(TABLES_INTERVAL_S - 2 * INTERVAL_S)
    assert admin.asked[GOOD, "topics"] == 1
    collector.refresh_tables()
    await collector.newer_than(collector.snapshot.version)
    assert admin.asked[GOOD, "topics"] == 2


async def test_a_slow_answer_is_asked_for_less_often(
    admin: FakeAdmin, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    admin.stats_took_s = 2.0
    await watch(nursery, admin)
    await trio.sleep(PATIENCE * 2.0 - 2 * INTERVAL_S)
    assert admin.asked[GOOD, "stats"] == 1
    await trio.sleep(3 * INTERVAL_S)
    assert admin.asked[GOOD, "stats"] == 2


async def test_without_nameservers_the_last_rows_stay(
    admin: FakeAdmin, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    collector = await watch(nursery, admin)
    before = collector.snapshot
    admin.no_namesrv = True
    after = await collector.newer_than(before.version)
    assert "127.0.0.1:9876" in after.error
    assert (after.brokers, after.topics, after.at_ms) == (before.brokers, before.topics, before.at_ms)
    admin.no_namesrv = False
    assert (await collector.newer_than(after.version)).error == ""


async def test_lag_and_rates_get_into_the_history(
    admin: FakeAdmin, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    admin.broken, admin.consumed_per_s = {DEAD}, 9
    collector = await watch(nursery, admin)
    history = collector.history
    (row,) = collector.snapshot.groups
    assert (row.consume_tps, row.pull_tps) == (None, 2.5) and history.get("rate shop") == []
    # The broker counts pulls; what is consumed shows in the offsets, over a minute at most.
    await trio.sleep(10 * INTERVAL_S)
    assert [row.consume_tps for row in collector.snapshot.groups] == [9.0]
    assert [run.value for run in history.get("lag shop")] == [7.0]
    assert {run.value for run in history.get("rate shop")} == {9.0}
    assert [run.value for run in history.get("in")] == [12.0]
    assert [run.value for run in history.get("queue shop orders broker-a 0")] == [7.0]
    assert history.get(f"in {DEAD}") == []


async def test_topics_have_kinds(
    admin: FakeAdmin, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    collector = await watch(nursery, admin)
    kinds = {row.topic: (row.kind, row.write_queues, row.sets) for row in collector.snapshot.topics}
    assert kinds == {"orders": ("user", 8, 2), "%RETRY%shop": ("retry", 2, 2)}


async def test_what_brokers_refuse_is_said(
    admin: FakeAdmin, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    admin.broken, admin.refuses_stats = {DEAD}, True
    collector = await watch(nursery, admin)
    (said,) = collector.snapshot.problems
    assert said.startswith("set broker-a does not tell its lag: ") and "no permission" in said
    await trio.sleep(3 * INTERVAL_S)
    assert caplog.text.count("set broker-a does not tell its lag") == 1
    admin.refuses_stats = False
    assert (await collector.newer_than(collector.snapshot.version)).problems == []
