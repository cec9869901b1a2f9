"""Random histories of pops over kills, power losses, stops and changes of the role.

Each message whose record survives is delivered until it is acknowledged. A message that is acknowledged in time does
not come again, unless a power loss took its acknowledgement. A hidden message is delivered to no consumer.
"""

from random import Random

import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from skylark.broker.delivery.pop.reviving import POLL_S, SAVE_S
from skylark.sdk.consumer.popped import ReceivedMessage
from tests.broker.delivery.pop.harness import FLUSH_S, Pops

Step = tuple[str, int]
ENDINGS = ("stop", "kill", "power")
INVISIBLE_MS = 2_500
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["send", "send", "pop", "pop", "pop", "ack", "ack", "hide", "wait", "role", "persist", "disk", *ENDINGS]
        ),
        st.integers(0, 5),
    ),
    max_size=50,
)


class History:
    """The messages that were sent, popped and acknowledged."""

    def __init__(self, pops: Pops) -> None:
        self.pops = pops
        self.count = 0
        self.sent: list[bytes] = []
        # How many of `sent` are on disk for certain, and the bodies whose acknowledgement is.
        self.durable = 0
        self.held: list[ReceivedMessage] = []
        self.acked: dict[bytes, None] = {}
        self.surely_acked: set[bytes] = set()
        self.ever_acked: set[bytes] = set()
        pops.on_flush = self.flushed

    def flushed(self) -> None:
        self.durable = len(self.sent)
        self.surely_acked = set(self.acked)

    def pop(self, most: int) -> None:
        hidden = {message.body for message in self.held if self.pops.is_hidden(message)}
        for message in self.pops.pop(most, INVISIBLE_MS):
            assert message.body not in self.acked, "an acknowledged message comes again"
            assert message.body not in hidden, "a hidden message is delivered"
            self.held.append(message)

    def ack(self, number: int) -> None:
        if self.held:
            message = self.held.pop(number % len(self.held))
            if self.pops.is_hidden(message) and self.pops.ack(message):
                self.acked[message.body] = None
                self.ever_acked.add(message.body)

    def hide(self, number: int) -> None:
        if self.held:
            # Its old handle is of no use any more, and the new one is not kept: it must come back.
            self.pops.hide(self.held[number % len(self.held)], number * 500)

    def lost_power(self) -> None:
        """Any end of what was not flushed may be gone; what comes again tells which acknowledgements."""
        del self.sent[self.durable :]
        self.acked = dict.fromkeys(self.surely_acked)
        self.held.clear()


async def one(model: History, name: str, number: int) -> None:
    pops = model.pops
    if name == "send" and pops.is_master:
        body = b"%d" % model.count
        model.count += 1
        pops.send(body, number % 2)
        model.sent.append(body)
    elif name == "pop":
        model.pop(number + 1)
    elif name == "ack":
        model.ack(number)
    elif name == "hide":
        model.hide(number)
    elif name == "wait":
        await trio.sleep(number * 0.7)
    elif name == "persist":
        # As the broker does from time to time, whatever is committed by then.
        await pops.persist()
    elif name == "disk":
        pops.disk_fails = not pops.disk_fails
    elif name == "role":
        pops.take_role(not pops.is_master)
        await trio.testing.wait_all_tasks_blocked()


async def run(history: list[Step], seed: int) -> None:
    random, pops = Random(seed), Pops()
    model = History(pops)
    left = list(history)
    while left:
        ending = next((name for name, _ in left if name in ENDINGS), "stop")
        async with pops.running(ending, random):
            while left and left[0][0] not in ENDINGS:
                await one(model, *left.pop(0))
            if left:
                left.pop(0)
        if ending == "stop":
            model.flushed()
        elif ending == "power":
            model.lost_power()
    pops.is_master, pops.disk_fails = True, False
    async with pops.running("stop", random):
        await finish(model)


async def finish(model: History) -> None:
    """Take everything that comes, until nothing comes any more."""
    pops, found = model.pops, set[bytes]()
    for _ in range(3):
        await trio.sleep(INVISIBLE_MS / 1000 + 1 + SAVE_S + FLUSH_S + POLL_S)
        while messages := pops.pop(32, 60_000):
            for message in messages:
                assert message.body not in model.acked
                found.add(message.body)
                assert pops.ack(message)
    missing = [body for body in model.sent[: model.durable] if body not in found and body not in model.acked]
    # What was acknowledged before a power loss may have stayed acknowledged.
    assert [body for body in missing if body not in model.ever_acked] == []
    assert len(pops.log.inflight) == 0


# Those that found mistakes: what comes back, what is read at a start, and from where.
@example([("send", 0), ("pop", 0)], 1)
@example([("send", 0), ("pop", 0), ("ack", 0), ("stop", 0), ("wait", 2)], 1)
@example([("send", 0), ("send", 0), ("pop", 1), ("ack", 0), ("kill", 0), ("pop", 1), ("wait", 5), ("kill", 0)], 1)
@example([("send", 0), ("pop", 0), ("wait", 2), ("stop", 0), ("wait", 2), ("stop", 0)], 1)
@example([("send", 0), ("pop", 0), ("role", 0), ("role", 0), ("pop", 0), ("hide", 5), ("kill", 0)], 1)
# The copy stays in the log, and the retry topic, made for it a moment before, must not be lost.
@example([("send", 0), ("pop", 0), ("stop", 0), ("wait", 4), ("power", 0)], 0)
# Popped while the log is brought to the disk: what that flush did not cover must not be committed.
@example([("send", 0), ("wait", 2), ("pop", 0), ("wait", 1), ("persist", 0), ("power", 0)], 3)
# The log does not get to the disk for long: its start must not be saved.
@example(
    [
        *(
            ("send", 0),
            ("send", 2),
            ("wait", 2),
            ("disk", 0),
            ("pop", 0),
            ("ack", 0),
            ("wait", 5),
            ("wait", 5),
            ("persist", 0),
        ),
        *(("power", 0), ("disk", 0), ("pop", 1), ("wait", 3), ("persist", 0), ("kill", 0)),
    ],
    1,
)
@given(steps, st.integers(0, 1 << 30))
def test_nothing_is_lost_and_nothing_acknowledged_comes_again(history: list[Step], seed: int) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(run, history, seed, clock=clock)
