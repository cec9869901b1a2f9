"""Where a group goes on after others have set or removed its offset, over starts, kills and changes of the role."""

from random import Random

import pytest
import trio
from trio.testing import MockClock

from skylark.broker.delivery.pop.records import Queue
from skylark.broker.delivery.pop.reviving import SAVE_S
from skylark.remoting.net.steps import run_slices
from tests.broker.delivery.pop.harness import Pops

QUEUE = Queue("g", "T", 0)
BODIES = [b"%d" % number for number in range(5)]
#: Others' offsets are noted by then.
NOTED_S = 2 * SAVE_S
HOUR_MS = 3_600_000


def all_popped(pops: Pops) -> None:
    """All of queue 0 is acknowledged. A message of queue 1 is hidden, so a start reads all of the revive log."""
    pops.send(b"long", 1)
    assert len(pops.pop(1, HOUR_MS, queue_id=1)) == 1
    for body in BODIES:
        pops.send(body, 0)
    popped = pops.pop(32, 60_000, queue_id=0)
    assert len(popped) == len(BODIES)
    for message in popped:
        assert pops.ack(message)


def popped_bodies(pops: Pops) -> list[bytes]:
    return [message.body for message in pops.pop(32, 60_000, queue_id=0)]


@pytest.mark.parametrize("ending", ["stop", "kill"])
async def test_an_offset_that_was_set_while_no_consumer_popped_counts_after_a_start(
    ending: str, autojump_clock: MockClock
) -> None:
    pops = Pops()
    async with pops.running(ending, Random(1)):
        all_popped(pops)
        await trio.sleep(10)
        pops.meta.offsets.commit(*QUEUE, 2)
        await trio.sleep(NOTED_S)
    async with pops.running("stop", Random(1)):
        await trio.sleep(NOTED_S)
        assert pops.meta.offsets.query(*QUEUE) == 2
        assert popped_bodies(pops) == BODIES[2:]


async def test_a_stop_notes_an_offset_that_was_set_a_moment_before(autojump_clock: MockClock) -> None:
    pops = Pops()
    async with pops.running("stop", Random(1)):
        all_popped(pops)
        await trio.sleep(10)
        pops.meta.offsets.commit(*QUEUE, 2)
        await pops.part.stop()
    async with pops.running("stop", Random(1)):
        assert popped_bodies(pops) == BODIES[2:]


async def test_an_offset_that_was_set_between_a_start_and_the_first_pop_counts(autojump_clock: MockClock) -> None:
    pops = Pops()
    async with pops.running("stop", Random(1)):
        all_popped(pops)
        await trio.sleep(10)
    async with pops.running("stop", Random(1)):
        pops.meta.offsets.commit(*QUEUE, 2)
        await trio.sleep(NOTED_S)
        assert popped_bodies(pops) == BODIES[2:]


async def test_a_commit_that_a_kill_took_may_come_back_from_a_slave(autojump_clock: MockClock) -> None:
    pops = Pops()
    async with pops.running("kill", Random(1)):
        all_popped(pops)
        await trio.sleep(NOTED_S)
    async with pops.running("stop", Random(1)):
        assert pops.meta.offsets.query(*QUEUE) == -1
        pops.meta.offsets.advance({"T@g": {0: 3}}, lambda topic, queue_id: len(BODIES))
        await trio.sleep(NOTED_S)
        assert popped_bodies(pops) == []
        assert pops.meta.offsets.query(*QUEUE) == len(BODIES)


@pytest.mark.parametrize("change", ["start", "role"])
async def test_a_position_is_forgotten_with_the_offset_that_is_removed(change: str, autojump_clock: MockClock) -> None:
    pops = Pops()
    async with pops.running("stop", Random(1)):
        all_popped(pops)
        await trio.sleep(10)
        await run_slices(pops.meta.offsets.remove_group("g"))
        await trio.sleep(NOTED_S)
        assert QUEUE not in pops.log.inflight.positions
        if change == "role":
            pops.take_role(False)
            pops.take_role(True)
            await trio.sleep(NOTED_S)
            assert popped_bodies(pops) == BODIES
            return
    async with pops.running("stop", Random(1)):
        await trio.sleep(NOTED_S)
        assert pops.meta.offsets.query(*QUEUE) == -1
        assert popped_bodies(pops) == BODIES


async def test_offsets_of_a_group_that_pulls_now_are_written_to_the_revive_log_once(autojump_clock: MockClock) -> None:
    pops = Pops()
    async with pops.running("stop", Random(1)):
        all_popped(pops)
        await trio.sleep(10)
        before = pops.log.end
        for offset in (1, 2, 3):
            pops.meta.offsets.commit(*QUEUE, offset)
            await trio.sleep(NOTED_S)
        assert pops.log.end == before + 1
        assert pops.meta.offsets.query(*QUEUE) == 3
        assert popped_bodies(pops) == BODIES[3:]
