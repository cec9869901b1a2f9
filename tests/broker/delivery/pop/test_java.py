"""Moving house with pops in flight: a Java broker's store opened here, and the store of this broker opened there."""

import logging
from random import Random

import pytest
import trio
from trio.testing import MockClock

from skylark.broker.broker import store_options
from skylark.broker.commands.json_metadata import export, import_files
from skylark.broker.delivery.pop.java import as_timed, is_from_java
from skylark.broker.delivery.pop.records import CHECKPOINT, Key, PopCheckpoint, Queue, decode
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.message.properties import decode_properties
from skylark.remoting.protocol.requests.pops import BatchAck
from tests.broker.delivery.pop.harness import OPTIONS, Pops
from tests.broker.delivery.pop.support import MINUTE_MS, Popper, bodies
from tests.broker.replication.sets import broker
from tests.broker.running import SMALL
from tests.support.clock import ManualClock
from tests.support.java_pops import GROUP, REVIVE, WHEEL, JavaBroker, pops_of_java
from tests.support.java_recovery import records_of_log
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

SIXTY = [b"%d" % number for number in range(60)]
HOUR_MS = 60 * MINUTE_MS
SIZES = {**SMALL, "mapped_file_size_commit_log": 16 * 1024}
# The sizes of `OPTIONS`. Index files of the usual size would be 400 MB of memory.
SAME_SIZES = BrokerOptions(
    mapped_file_size_commit_log=OPTIONS.commitlog_segment_bytes, max_hash_slot_num=OPTIONS.index_slots,
    mapped_file_size_consume_queue=OPTIONS.consumequeue_segment_bytes, max_index_num=OPTIONS.index_capacity,
)  # fmt: skip


def sixty_popped_by_java(pops: Pops) -> None:
    """Java's store after a kill: 0 to 19 wait in the wheel, 20 to 39 do not any more, and so on."""
    java = JavaBroker(pops.fs, pops.clock, OPTIONS)
    now_ms = pops.clock.now_ms()
    for body in [*SIXTY, b"new"]:
        java.send(body)
    java.pop([*range(20)], now_ms, MINUTE_MS, revive_queue=3)
    due = java.pop([*range(20, 30)], now_ms - MINUTE_MS, MINUTE_MS + 500, revive_queue=0)
    java.ack(due, 20)  # waits: it is due later than its check point
    java.pop([*range(30, 40)], now_ms - MINUTE_MS, MINUTE_MS - 1, revive_queue=1)
    half = java.pop([*range(40, 50)], now_ms, MINUTE_MS, revive_queue=0)
    java.ack(half, 40)
    java.ack(half, 41, 42, 43, 44)
    java.pop([*range(50, 60)], now_ms - MINUTE_MS, MINUTE_MS - 1, revive_queue=2)
    java.offsets[f"{REVIVE}@{GROUP}"] = {2: 0}
    java.pop([0, 1], now_ms, MINUTE_MS, bn="broker-b")
    java.offsets["T@g"] = {0: 60}
    java.killed()
    pops.fs = pops.fs.killed()


async def given(pops: Pops) -> list[bytes]:
    """The messages that a consumer that acknowledges gets now."""
    found = []
    while popped := pops.pop(32, HOUR_MS):
        found += [message.body for message in popped]
        assert all([pops.ack(message) for message in popped])
    return found


@pytest.mark.parametrize("killed_after_s", [0.0, 0.3, 3.0, 8.0])
async def test_what_java_popped_comes_back_once(
    killed_after_s: float, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    pops = Pops()
    sixty_popped_by_java(pops)
    pop_ms = pops.clock.now_ms()
    found: list[bytes] = []
    with caplog.at_level(logging.INFO):
        async with pops.running("kill", Random(1)):
            await trio.sleep(killed_after_s)
            if killed_after_s > 1:
                found += await given(pops)
        async with pops.running("stop", Random(1)):
            await trio.sleep(1)
            found += await given(pops)
            assert sorted(found) == sorted([b"new", *SIXTY[21:40]]), "the others are hidden"
            # A consumer that popped from the Java broker acknowledges here.
            assert pops.ack_entry(BatchAck(0b11, "g", MINUTE_MS, pop_ms, 0, "0", 3, 0, "T"))
            await trio.sleep(62)
            found += await given(pops)
    expected = [b"new", *SIXTY[21:40], *SIXTY[2:20], *SIXTY[45:50]]
    assert sorted(found) == sorted(expected), "each once; what was acknowledged or had come back at Java's does not"
    assert "popped messages are taken over from RocketMQ's broker" in caplog.text
    assert "1 check points of broker broker-b are not taken over, as this broker is broker-a" in caplog.text
    async with pops.running("stop", Random(1)):
        await trio.sleep(62)
        assert await given(pops) == []


@pytest.mark.parametrize("disk_fails", [False, True])
async def test_a_power_loss_while_pops_are_taken_over_loses_none(disk_fails: bool, autojump_clock: MockClock) -> None:
    for seed in range(4):
        pops = Pops()
        sixty_popped_by_java(pops)
        pops.disk_fails = disk_fails
        async with pops.running("power", Random(seed)):
            await trio.sleep(0.7 * seed)
            await pops.persist()
        pops.disk_fails = False
        async with pops.running("stop", Random(seed)):
            await trio.sleep(65)
            assert {*SIXTY[:20], *SIXTY[21:40], *SIXTY[45:50], b"new"} <= {*await given(pops)}


async def test_what_java_had_given_again_before_it_ended_does_not_come_again(autojump_clock: MockClock) -> None:
    pops = Pops()
    java = JavaBroker(pops.fs, pops.clock, OPTIONS)
    for body in SIXTY:
        java.send(body)
    for first, revive_queue in ((0, 0), (20, 1), (40, 1)):
        java.pop([*range(first, first + 20)], pops.clock.now_ms(), MINUTE_MS, revive_queue=revive_queue)
    await trio.sleep(61)
    java.move()
    java.offsets[f"{REVIVE}@{GROUP}"] = {0: 0, 1: 0}
    java.killed()
    pops.fs = pops.fs.killed()
    async with pops.running("stop", Random(1)):
        await trio.sleep(1)
        assert sorted(await given(pops)) == sorted(SIXTY[40:])


async def sixty_popped_here(pops: Pops) -> None:
    """A store of this broker after a kill: three messages are acknowledged, one got another time."""
    async with pops.running("kill", Random(1)):
        for body in [*SIXTY, b"new"]:
            pops.send(body, 0)
        popped = [message for _ in range(3) for message in pops.pop(20, MINUTE_MS)]
        assert all([pops.ack(message) for message in popped[:3]])
        pops.hide(popped[3], 2 * MINUTE_MS)
        await trio.sleep(0.5)


def exported(pops: Pops) -> str:
    said: list[str] = []
    export(pops.fs, pops.clock, "/store", options=SAME_SIZES, say=said.append)
    return said[-1] if said else ""


async def test_what_was_popped_here_comes_back_at_java(autojump_clock: MockClock) -> None:
    pops = Pops()
    await sixty_popped_here(pops)
    for _ in range(2):  # a second export changes nothing
        assert exported(pops) == "57 popped messages in flight are handed over by 4 check points"
        assert pops_of_java(pops.fs, pops.clock.now_ms() + MINUTE_MS // 2).revived == [], "not before their time"
        java = pops_of_java(pops.fs, pops.clock.now_ms() + 3 * MINUTE_MS)
        assert sorted(java.revived) == sorted(SIXTY[3:])
        assert java.offsets["T@g"] == {0: 60}, "only new messages are popped besides"
        waiting = [each for each in records_of_log(pops.fs, "/store/commitlog") if each.topic == WHEEL]
        assert len(waiting) == 4


@pytest.mark.parametrize("java_ran", [False, True])
async def test_what_was_handed_over_comes_back_here_once_if_java_does_not_run(
    java_ran: bool, autojump_clock: MockClock
) -> None:
    pops = Pops()
    await sixty_popped_here(pops)
    exported(pops)
    if java_ran:  # and was killed at once
        import_files(pops.fs, pops.clock, "/store")
    async with pops.running("stop", Random(1)):
        assert pops.meta.offsets.query(GROUP, WHEEL, 0) >= 0, "timed delivery does not move them"
        await trio.sleep(125)
        assert sorted(await given(pops)) == sorted([b"new", *SIXTY[3:]])
    async with pops.running("stop", Random(1)):
        await trio.sleep(125)
        assert await given(pops) == []


async def test_pops_in_order_go_on_at_the_first_message_that_is_not_acknowledged(autojump_clock: MockClock) -> None:
    pops = Pops()
    async with pops.running("kill", Random(1)):
        for body in SIXTY:
            pops.send(body, 1)
        popped = pops.pop(8, MINUTE_MS, is_ordered=True)
        assert all([pops.ack(message) for message in popped[:3]])
    exported(pops)
    java = pops_of_java(pops.fs, pops.clock.now_ms() + 2 * MINUTE_MS)
    assert (java.revived, java.offsets["T@g"]) == ([], {1: 3})


def test_a_check_point_as_java_writes_it() -> None:
    key = Key(Queue("g", "T", 2), 10, 1_700_000_000_000)
    checkpoint = PopCheckpoint(key, 60_000, tuple(range(10, 42)), acked=1 << 31 | 1)
    body, raw = as_timed(checkpoint, "broker-a", REVIVE, 1_000)
    assert decode(CHECKPOINT, body) == PopCheckpoint(key, 60_000, checkpoint.offsets, acked=(1 << 31 | 1) - (1 << 32))
    assert is_from_java(raw)
    assert decode_properties(raw.decode()) == {
        "TAGS": "ck", "TIMER_DELIVER_MS": "1700000059000", "TIMER_OUT_MS": "1700000058000", "REAL_TOPIC": REVIVE,
        "REAL_QID": "0", "UNIQ_KEY": "T@2@10@g@1700000000000@broker-a@ck",
    }  # fmt: skip


async def test_there_and_back_with_whole_brokers() -> None:
    fs = MemoryFiles()
    then = ManualClock(SystemClock().now_ms() - HOUR_MS)
    java = JavaBroker(fs, then, store_options(BrokerOptions(**SIZES)))
    for body in SIXTY:
        java.send(body)
    for first in (0, 20, 40):
        java.pop([*range(first, first + 20)], then.now_ms(), MINUTE_MS, revive_queue=first // 20)
    java.killed()
    async with broker(fs.killed(), **SIZES) as ours:
        popper, popped = Popper(ours.client, ours.addr), []

        async def all_came() -> bool:
            popped.extend(await popper.pop())
            return len(popped) >= 60

        await until(all_came, "60 of 60 come back")
        assert sorted(bodies(popped)) == sorted(SIXTY)
        own = [b"own " + body for body in SIXTY]
        await popper.send(*own)
        popped = [one for _ in range(2) for one in await popper.pop()]
        assert bodies(popped) == own
        left = ours.kill()
    records = [*records_of_log(left, "/store/commitlog")]
    assert not [each for each in records if each.topic == REVIVE and is_from_java(each.properties)], "they stay"
    export(left, SystemClock(), "/store", options=BrokerOptions(**SIZES))
    found = pops_of_java(left, SystemClock().now_ms() + 2 * MINUTE_MS)
    assert sorted(body for body in found.revived if body in own) == sorted(own), "60 of 60 come back"
    assert {*found.revived} == {*own, *SIXTY}
