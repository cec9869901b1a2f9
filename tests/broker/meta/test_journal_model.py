"""Any sequence of changes, syncs, compactions, full disks, kills and power losses: nothing acknowledged is lost.

The model is the list of states after each change. After power loss the journal must hold one of the states since the
last acknowledged one: a prefix of what was appended. After a kill it must hold the last.
"""

import contextlib
import copy
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from skylark.broker.meta.journal import Compaction, Journal
from skylark.mqcommon.errors import DiskFull, StoreError
from tests.support.memory_files import MemoryFiles

DIRECTORY = "/store/config"
State = dict[str, Any]
KEYS = st.sampled_from("abcde")
VALUES = st.one_of(st.integers(0, 1000), st.binary(max_size=900))


class PowerLoss(Exception):
    """Raised inside a file operation, after the image of the disk was taken."""


class JournalModel(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.fs = MemoryFiles()
        self.open([{}])

    def open(self, allowed: list[State]) -> None:
        state: State = {}

        def apply(kind: str, payload: Any) -> None:
            if kind == "put":
                state.update([payload])
            elif kind == "all":
                state.update(payload)
            else:
                assert kind == "delete"
                state.pop(payload, None)

        self.journal = Journal(self.fs, DIRECTORY)
        self.journal.replay(apply)
        assert state in allowed
        self.states = [state]  # since the last acknowledged change
        self.compaction: Compaction | None = None
        self.taken: State = {}

    def change(self, kind: str, payload: Any) -> None:
        state = copy.copy(self.states[-1])
        try:
            self.journal.append(kind, payload)
        except DiskFull:
            return
        if kind == "put":
            state.update([payload])
        else:
            state.pop(payload, None)
        self.states.append(state)

    @rule(key=KEYS, value=VALUES)
    def put(self, key: str, value: Any) -> None:
        self.change("put", [key, value])

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.change("delete", key)

    @rule()
    def sync(self) -> None:
        self.journal.sync()
        del self.states[:-1]

    @rule(meta=st.integers(0, 1500))
    def fill_disk(self, meta: int) -> None:
        self.fs.capacity = self.fs.used() + meta

    @rule()
    def make_room(self) -> None:
        self.fs.capacity = 1 << 40

    @precondition(lambda self: self.compaction is None)
    @rule()
    def begin_compaction(self) -> None:
        try:
            self.compaction = self.journal.begin_compaction()
        except StoreError:
            assert self.fs.capacity < 1 << 40
        self.taken = self.states[-1]

    @precondition(lambda self: self.compaction is not None)
    @rule()
    def finish_compaction(self) -> None:
        compaction = self.compaction
        assert compaction is not None
        try:
            compaction.write([("all", self.taken)])
        except StoreError:
            assert self.fs.capacity < 1 << 40
        self.journal.end_compaction(compaction)
        self.compaction = None

    @precondition(lambda self: self.compaction is not None)
    @rule(operation=st.integers(1, 8), seed=st.integers(0, 2**32))
    def power_loss_in_compaction(self, operation: int, seed: int) -> None:
        images: list[MemoryFiles] = []

        def before_call(name: str, path: str) -> None:
            if self.fs.calls.total() >= last:
                images.append(self.fs.crash(Random(seed)))
                raise PowerLoss

        last = self.fs.calls.total() + operation
        self.fs.before_call = before_call
        assert self.compaction is not None
        with contextlib.suppress(PowerLoss, StoreError):
            self.compaction.write([("all", self.taken)])
        self.fs = images[0] if images else self.fs.crash(Random(seed))
        self.fs.capacity = 1 << 40
        self.open(self.states)

    @rule(seed=st.integers(0, 2**32))
    def power_loss(self, seed: int) -> None:
        self.fs = self.fs.crash(Random(seed))
        self.fs.capacity = 1 << 40
        self.open(self.states)

    @rule()
    def kill(self) -> None:
        self.fs = self.fs.killed()
        self.fs.capacity = 1 << 40
        self.open(self.states[-1:])

    @rule()
    def restart(self) -> None:
        try:
            self.journal.close()
        except DiskFull:
            assert self.fs.capacity < 1 << 40
        self.fs.capacity = 1 << 40
        self.open(self.states[-1:])


JournalModel.TestCase.settings = settings(stateful_step_count=40)
TestJournalModel = JournalModel.TestCase
