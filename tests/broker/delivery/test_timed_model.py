"""Random histories of timed messages over kills, power losses, stops, changes of the role and recalls.

Each message whose record is in the log is delivered once into that log, unless it was recalled, and not before its
time.
"""

from collections import Counter
from random import Random
from unittest import mock

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.delivery import timed_delivery as part_module
from skylark.broker.delivery.timed_delivery import POLL_S, recall_names
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.names import TIMER_TOPIC
from tests.broker.delivery.later import Timers
from tests.broker.store.support import read_all

Step = tuple[str, int]
ENDINGS = ("stop", "kill", "power")
KINDS = ["send", "send", "send", "recall", "wait", "wait", "flush", "slave", *ENDINGS]
steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 6)), max_size=40)


class History:
    """When each message was due, and which were recalled, with the handle of each."""

    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self.sent = 0
        self.due: dict[bytes, int] = {}
        self.handles: dict[bytes, str] = {}
        self.recalled: set[bytes] = set()

    def send(self, seconds: int) -> None:
        body = b"%d" % self.sent
        self.sent += 1
        delay_ms = seconds * 700
        self.due[body] = self.timers.clock.now_ms() + delay_ms
        self.handles[body] = self.timers.send(body, delay_ms)

    def recall(self, back: int) -> None:
        """Recall one of the last messages, if it is not too late."""
        for body in list(self.due)[-back:][:1]:
            # The slot of a message ends a second before it is delivered at the earliest.
            if self.due[body] > self.timers.clock.now_ms() + 1_000 and self.handles[body]:
                self.timers.recall(self.handles[body])
                self.recalled.add(body)

    def check(self) -> None:
        found = self.timers.records()
        counts = Counter(record.body for record in found)
        assert [body for body, count in counts.items() if count > 1] == []
        assert [record.body for record in found if record.store_timestamp < self.due[record.body]] == []
        assert not self.recalled & set(counts)


async def run(history: list[Step], seed: int) -> None:
    random, timers = Random(seed), Timers()
    model = History(timers)
    left = list(history)
    while left:
        ending = next((name for name, _ in left if name in ENDINGS), "stop")
        async with timers.running() if ending == "stop" else timers.killed(random if ending == "power" else None):
            timers.is_master = True
            while left and left[0][0] not in ENDINGS:
                await one(model, *left.pop(0))
            if left:
                left.pop(0)
            model.check()
        if ending == "power":
            forget_what_was_lost(model)
    async with timers.running():
        timers.is_master = True
        await trio.sleep(8)
        model.check()
        assert set(model.due) - model.recalled == set(timers.bodies())


async def one(model: History, name: str, number: int) -> None:
    timers = model.timers
    if name == "send" and timers.is_master:
        model.send(number)
    elif name == "recall" and timers.is_master:
        model.recall(number)
    elif name == "wait":
        await trio.sleep(number * 0.37)
    elif name == "flush":
        timers.store.flush()
    elif name == "slave":
        timers.is_master = not timers.is_master
        await trio.sleep(3 * POLL_S)


def forget_what_was_lost(model: History) -> None:
    """After a power loss the log may have any part of what was not flushed; the part itself tells which."""
    timers = model.timers
    timers.start()
    waiting = read_all(timers.store, TIMER_TOPIC, 0)
    kept = {record.body for record in waiting} | set(timers.bodies())
    model.due = {body: due for body, due in model.due.items() if body in kept}
    recalled_keys = {find_property(record.properties, b"TIMER_DEL_UNIQKEY") for record in waiting}
    model.recalled = {
        record.body
        for record in waiting
        if record.body in model.recalled and recall_names(record.properties)[0] in recalled_keys
    }
    timers.meta.journal.close()
    timers.store.close()


@given(steps, st.integers(0, 1 << 30))
def test_each_is_delivered_once_and_none_early(history: list[Step], seed: int) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    # So small that checkpoints are written at all kinds of moments.
    with mock.patch.object(part_module, "CHECKPOINT_BYTES", 700), mock.patch.object(part_module, "SLICE", 2):
        trio.run(run, history, seed, clock=clock)
