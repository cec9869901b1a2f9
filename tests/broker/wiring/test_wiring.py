"""The parts of a whole broker: their order at the start, at the stop, and after a start that failed."""

from types import SimpleNamespace
from typing import Any

import pytest

from skylark.broker import broker as broker_module
from skylark.broker.delivery.delayed_delivery import DelayedDelivery
from skylark.broker.delivery.held_pulls import HeldPulls
from skylark.broker.delivery.timed_delivery import TimedDelivery
from skylark.broker.delivery.transaction.transactions import Transactions
from skylark.broker.meta.clients import Clients
from skylark.broker.part import Part
from skylark.broker.replication.role import RoleMachine
from skylark.broker.wiring import wiring as wiring_module
from skylark.broker.wiring.core import Core
from skylark.broker.wiring.wiring import Wiring, wire, wire_resets
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.clients import ConsumerData, HeartbeatData
from tests.broker.meta.support import MetadataDir
from tests.broker.running import running, send_request
from tests.broker.wiring.parts import part_of
from tests.broker.writing.support import Answers
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The calls that the parts of the next broker got, in order."""
    told: list[tuple[str, str]] = []

    def note(part: Part, name: str) -> None:
        original = getattr(part, name)

        async def noted(**how: Any) -> None:
            told.append((name, type(part).__name__))
            await original(**how)

        monkeypatch.setattr(part, name, noted)

    def wired(*args: Any) -> Wiring:
        wiring = wire(*args)
        for part in wiring.parts:
            for name in ("run", "stop", "close"):
                note(part, name)
        return wiring

    monkeypatch.setattr(broker_module, "wire", wired)
    return told


def names(events: list[tuple[str, str]], event: str) -> list[str]:
    return [part for name, part in events if name == event]


async def test_parts_stop_and_close_in_the_reverse_order(events: list[tuple[str, str]]) -> None:
    async with running() as (client, addr):
        await client.invoke(addr, send_request("T", b"x"))
        assert names(events, "stop") == names(events, "close") == []
    stopped = names(events, "stop")
    started = [name for name in names(events, "run") if name in stopped]
    assert started == [name for name in reversed(stopped) if name in started]
    assert names(events, "close") == stopped, "all are closed, each after those that need it"
    order = ["Registrar", "ClientPort", "PullHandlers", "SendHandlers", "OpenConnections", "Flusher", "Replication"]
    assert [name for name in stopped if name in order] == order


async def test_after_a_start_that_failed_all_parts_are_closed(
    events: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Part, **how: Any) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr("skylark.broker.tasks.clean.Cleaner.run", fail)
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="on purpose"), flatten_subgroups=True):
        async with running():
            pass
    assert names(events, "stop") == []
    assert "Persister" in names(events, "close") and "ClientPort" in names(events, "close")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Core, Wiring]]:
    """The parts of which brokers of this test are made."""
    found: list[tuple[Core, Wiring]] = []

    def wired(core: Core, *others: Any) -> Wiring:
        found.append((core, wire(core, *others)))
        return found[-1][1]

    monkeypatch.setattr(broker_module, "wire", wired)
    return found


async def test_parts_that_deliver_begin_anew_at_each_change_of_the_role(made: list[tuple[Core, Wiring]]) -> None:
    """They poll the role, too; two changes between two polls would leave them with what they knew of another log."""
    async with running() as (client, addr):
        await client.invoke(addr, send_request("T", b"x", properties="TIMER_DELAY_MS\x0160000\x02"))
        core, wiring = made[0]
        delayed, timed = part_of(wiring, DelayedDelivery), part_of(wiring, TimedDelivery)
        transactions = part_of(wiring, Transactions)

        def is_at_work() -> bool:
            return bool(delayed._levels) and timed._state is not None and transactions._ledger.is_ready

        await until(is_at_work, "they deliver")
        core.role.demoted(1)
        assert (delayed._levels, timed._state, transactions._ledger.is_ready) == ([], None, False)


async def test_a_demotion_refuses_messages_and_ends_the_waits_for_slaves_at_once(
    made: list[tuple[Core, Wiring]],
) -> None:
    async with running(broker_role="SYNC_MASTER", in_sync_replicas=2, total_replicas=2):
        core, answers = made[0][0], Answers()
        core.acks.connected("s:1", 0.0)
        core.acks.acked("s:1", 0)
        answers.wait(core.durability, 100)
        assert answers.codes == [] and not core.admission.takes_none
        core.role.demoted(1)
        assert answers.codes == [ResponseCode.FLUSH_SLAVE_TIMEOUT] and core.admission.takes_none


async def test_a_new_master_takes_no_message_before_it_has_finished_the_deletions_of_topics(
    made: list[tuple[Core, Wiring]],
) -> None:
    async with running() as (client, addr):
        core = made[0][0]
        core.role.demoted(1)
        async with core.removal.lock:
            core.metadata.topics.deletions.begin("gone", 0)
            core.role.promoted()
            await until(lambda: core.is_master, "it is the master")
            refused = await client.invoke(addr, send_request("T", b"x"))
            text = "the deletion of a topic is finished first, a moment only"
            assert (refused.code, refused.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, text)
        await until(lambda: core.admission.is_open, "the deletion is finished")
        assert (await client.invoke(addr, send_request("T", b"x"))).code == ResponseCode.SUCCESS


def test_a_broker_that_is_no_longer_the_master_forgets_pending_resets() -> None:
    meta, clients, role = MetadataDir(), Clients(), RoleMachine(0)
    channel: Any = object()  # only a key here
    clients.join_consumer_group(channel, HeartbeatData("c"), ConsumerData("g"), "JAVA", 479, 0)
    core: Any = SimpleNamespace(metadata=meta.metadata, clients=clients, role=role)
    resets = wire_resets(core, HeldPulls())
    resets.set("g", "T", 0, 7)
    assert resets.pending
    role.demoted(1)
    assert not resets.pending


@pytest.mark.parametrize(("limit", "level"), [(1_024, "WARNING"), (1 << 20, "INFO")])
def test_a_low_limit_of_open_files_is_told_with_what_raises_it(
    limit: int, level: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(wiring_module, "open_files_limit", lambda: limit)
    store: Any = SimpleNamespace(queues=SimpleNamespace(maps=SimpleNamespace(most=7)))
    wiring_module._log_open_files(store, 5)
    (record,) = caplog.records
    assert record.levelname == level and ("LimitNOFILE" in caplog.text) is (level == "WARNING")


async def test_a_last_block_that_the_disk_has_changed_is_told_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFiles()
    async with running(fs) as (client, addr):
        await client.invoke(addr, send_request("T", b"x", properties="KEYS\x01a key\x02"))
    name = "/store/commitlog/00000000000000000000"
    fs.damage(name, fs.read(name).rindex(b"a key"), b"\xff")
    async with running(fs):
        assert "the disk has changed the block at 0 of the log since the last checkpoint" in caplog.text
