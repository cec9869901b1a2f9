"""Random histories of transactions over kills between any two writes, power losses and restarts.

No message is seen before its commit or after a rollback, and none is seen twice. In the end each half that is on disk
has ended as its producer wants.
"""

from collections import Counter
from contextlib import suppress
from random import Random

import trio
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.store import PutResult
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.names import TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from tests.broker.delivery.transaction.support import TIMEOUT_MS, Broker, Killed

Step = tuple[str, int]
NAMES = ["half", "half", "end", "end", "turn", "check", "answer", "save", "plain", "kill", "die", "power"]
steps = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 7)), max_size=60)


class History:
    """Halves by body, and what happened to them. A half commits if the number in its body is even."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.broker = Broker()
        self.broker.recover()
        self.halves: list[tuple[bytes, PutResult]] = []
        self.count = 0

    def step(self, name: str, number: int) -> None:
        try:
            self._step(name, number)
        except Killed:
            self.restart(None)

    def _step(self, name: str, number: int) -> None:
        broker = self.broker
        if name == "half":
            body = b"%d" % self.count
            self.count += 1
            self.halves.append((body, broker.send(body)))
        elif name == "plain":
            broker.writer.put("other", 0, bytes(100 * number), b"", 0, 0, 1, b"\0" * 8)
        elif name == "end" and self.halves:
            body, put = self.halves[-1 - number % len(self.halves)]
            self.end(put.queue_offset, put.physical_offset, body)
        elif name == "turn":
            broker.part.after_turn()
        elif name == "check":
            broker.clock.advance(TIMEOUT_MS)
            broker.check()
        elif name == "answer":
            self.answer()
        elif name == "save":
            broker.save()
        elif name == "die":
            broker.dies_after = number
        elif name in ("kill", "power"):
            self.restart(self.random if name == "power" else None)

    def end(self, queue_offset: int, physical_offset: int, body: bytes) -> None:
        with suppress(RequestRefused):  # it has ended already, or a power loss took it
            self.broker.ask(queue_offset, physical_offset, commit=int(body) % 2 == 0)

    def answer(self) -> None:
        """Answer what was asked; some answers are lost."""
        asked, self.broker.producer.asked = self.broker.producer.asked, []
        for header, message in asked:
            if self.random.random() < 0.7:
                self.end(header.tran_state_table_offset, header.commit_log_offset, decode_record(message).body)

    def restart(self, random: Random | None) -> None:
        self.broker.kill(random)
        self.broker.producer.asked.clear()
        if random is not None:
            kept = set(self.broker.bodies(TRANS_HALF_TOPIC))
            self.halves = [half for half in self.halves if half[0] in kept]
        self.broker.recover()

    def check(self) -> None:
        seen = Counter(self.broker.bodies())
        assert [body for body, times in seen.items() if times > 1] == []
        assert [body for body in seen if int(body) % 2] == []


@given(steps, st.integers(0, 1 << 30))
def test_each_transaction_ends_once_as_its_producer_wants(history: list[Step], seed: int) -> None:
    trio.run(run, history, seed)


async def run(history: list[Step], seed: int) -> None:
    model = History(Random(seed))
    for name, number in history:
        model.step(name, number)
        model.check()
    model.broker.dies_after = None
    for _ in range(40):
        model.step("check", 0)
        model.step("answer", 0)
        if not model.broker.open_halves():
            break
    model.check()
    assert model.broker.open_halves() == []
    wanted = {body for body, _ in model.halves if int(body) % 2 == 0}
    assert wanted <= set(model.broker.bodies())
    model.broker.ledger.write_ops()
    model.broker.kill()
    model.broker.recover()
    assert model.broker.open_halves() == [], "nothing is open again after a restart"


async def test_a_long_history_needs_little_of_the_op_log_again() -> None:
    broker = Broker()
    broker.recover()
    for number in range(3_000):
        broker.end(broker.send(b"%d" % number), commit=number % 2 == 0)
        broker.part.after_turn()
        if number % 100 == 0:
            broker.save()
    offsets = broker.meta.offsets
    halves = offsets.query("CID_RMQ_SYS_TRANS", TRANS_HALF_TOPIC, 0)
    ops = offsets.query("CID_RMQ_SYS_TRANS", TRANS_OP_TOPIC, 0)
    assert 2_700 < halves <= 2_901 and 2_400 < ops <= 2_901
