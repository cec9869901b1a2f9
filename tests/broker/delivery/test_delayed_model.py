"""Random histories of delayed messages over kills, power losses, stops and changes of the role.

Nothing whose record is on disk is lost, nothing comes before its time, and nothing comes twice unless a crash or
a demotion took the offset that was not saved. The order within a level is kept.
"""

from collections import Counter
from random import Random

import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from skylark.broker.delivery.delayed_delivery import POLL_S
from skylark.broker.store.queue.delay_levels import DelayLevels
from skylark.mqcommon.names import SCHEDULE_TOPIC
from tests.broker.delivery.later import Delays
from tests.broker.store.support import read_all

# Short, so that an example has few polls.
LEVELS = DelayLevels.parse("1s 2s 6s")
Step = tuple[str, int]
ENDINGS = ("stop", "kill", "power")
steps = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "wait", "wait", "flush", "slave", "stop", "kill", "power"]), st.integers(1, 3)
    ),
    max_size=40,
)


class History:
    """The messages that were sent, which of them are durable, and when each was due."""

    def __init__(self, delays: Delays) -> None:
        self.delays = delays
        self.sent: list[tuple[bytes, int, int]] = []
        # How many of `sent` are on disk.
        self.durable = 0
        # Bodies that may have been delivered without a saved offset at some crash or demotion.
        self.may_come_again: set[bytes] = set()

    def send(self, level: int) -> None:
        body = b"%d" % len(self.sent)
        self.sent.append((body, level, self.delays.clock.now_ms() + LEVELS.delay_ms(level)))
        self.delays.send(body, level, queue_id=level)

    def check(self) -> None:
        """No message is early, nor twice without a reason; messages of a level come in their order."""
        now_ms = self.delays.clock.now_ms()
        for level in (1, 2, 3):
            found = self.delays.bodies(queue_id=level)
            known = {body: due for body, its_level, due in self.sent if its_level == level}
            assert set(found) <= set(known)
            assert [body for body in found if known[body] > now_ms] == []
            twice = {body for body, count in Counter(found).items() if count > 1}
            assert twice <= self.may_come_again
            first = list(dict.fromkeys(found))
            assert first == sorted(first, key=int)

    def unsaved_offsets_are_lost(self) -> None:
        saved = self.delays.offsets.table.offset_table
        for level in (1, 2, 3):
            # Offsets count the messages of the level that are in the log, which is `sent` without what was lost.
            mine = [body for body, its_level, _ in self.sent if its_level == level]
            self.may_come_again.update(mine[saved.get(level, 0) :])


async def run(history: list[Step], seed: int) -> None:
    random, delays = Random(seed), Delays("1s 2s 6s")
    model = History(delays)
    left = list(history)
    while left:
        ending = next((name for name, _ in left if name in ENDINGS), "stop")
        context = delays.running() if ending == "stop" else delays.killed(random if ending == "power" else None)
        async with context:
            while left and left[0][0] not in ENDINGS:
                await one(model, *left.pop(0))
            if left:
                left.pop(0)
            model.check()
            if ending == "stop":
                model.durable = len(model.sent)
            else:
                model.unsaved_offsets_are_lost()
        if ending == "power":
            lose_what_was_not_durable(model)
    async with delays.running():
        delays.is_master = True
        await trio.sleep(LEVELS.delay_ms(3) / 1000 + 1)
        model.check()
        delivered = {body for level in (1, 2, 3) for body in delays.bodies(queue_id=level)}
        assert [body for body, _, _ in model.sent if body not in delivered] == []


async def one(model: History, name: str, number: int) -> None:
    delays = model.delays
    if name == "send":
        if delays.is_master:
            model.send(number)
    elif name == "wait":
        await trio.sleep(number * 0.7)
    elif name == "flush":
        delays.store.flush()
        model.durable = len(model.sent)
    else:
        if delays.is_master:
            model.unsaved_offsets_are_lost()
        delays.is_master = not delays.is_master
        await trio.sleep(2 * POLL_S)


def lose_what_was_not_durable(model: History) -> None:
    """After a power loss the log may have any part of what was not flushed; the part itself tells which."""
    delays = model.delays
    delays.start()
    kept = {record.body for level in (1, 2, 3) for record in read_all(delays.store, SCHEDULE_TOPIC, level - 1)}
    lost = [body for body, _, _ in model.sent[model.durable :] if body not in kept]
    model.sent = [message for message in model.sent if message[0] not in lost]
    model.may_come_again.update(body for body, _, _ in model.sent if body in kept)
    delays.meta.journal.close()
    delays.store.close()


@given(steps, st.integers(0, 1 << 30))
@example([("slave", 1), ("slave", 1), ("send", 1), ("wait", 2), ("slave", 1)], 0)  # demoted before the offset is saved
def test_nothing_is_lost_early_or_twice_without_a_reason(history: list[Step], seed: int) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(run, history, seed, clock=clock)
