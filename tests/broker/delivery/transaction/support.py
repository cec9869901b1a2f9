"""Transactions on a disk in memory, with a broker's own parts around them and a producer that answers checks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import trio

from skylark.broker.delivery.background import Background
from skylark.broker.delivery.message_ages import MessageAges
from skylark.broker.delivery.transaction.checks import TransactionChecks
from skylark.broker.delivery.transaction.ledger import Ledger
from skylark.broker.delivery.transaction.transactions import Transactions
from skylark.broker.meta.clients import Clients
from skylark.broker.observe.stats import TransactionCounts
from skylark.broker.store.store import PutResult
from skylark.mqcommon.message.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from skylark.mqcommon.message.record import Record
from skylark.mqcommon.names import TRANS_HALF_TOPIC
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import RunInTask
from skylark.remoting.net.steps import Stepper, finish
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.transactions import (
    CHECK_TRANSACTION_STATE,
    END_TRANSACTION,
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from tests.broker.delivery.later import LEVELS, TrioClock
from tests.broker.meta.support import MetadataDir, options
from tests.broker.store.support import HOST, SMALL, new_store, read_all
from tests.broker.writing.support import make_sends
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

GROUP = "g"
TIMEOUT_MS, INTERVAL_MS = 1_000, 2_000
PROPERTIES = b"TRAN_MSG\x01true\x02PGROUP\x01g\x02"


class Killed(Exception):
    """The process dies here."""


@dataclass
class Producer:
    """A producer's connection, as checks need it."""

    closed_reason: str | None = None
    buffered_bytes: int = 0
    remote: str = "127.0.0.1:1"

    def __post_init__(self) -> None:
        self.asked: list[tuple[CheckTransactionStateRequestHeader, bytes]] = []

    def push(self, command: Command) -> None:
        assert command.is_oneway
        self.asked.append((CHECK_TRANSACTION_STATE.header(command), command.body))


class Broker:
    """A store with its metadata and transactions, which can be killed and started again."""

    def __init__(self, clock: ManualClock | None = None, **changes: Any) -> None:
        self.fs = MemoryFiles()
        self.clock = clock or ManualClock()
        self.options = options(
            transaction_time_out=TIMEOUT_MS, transaction_check_interval=INTERVAL_MS,
            **{"transaction_check_max": 1_000, "message_delay_level": LEVELS, **changes},
        )  # fmt: skip
        self.producer = Producer()
        self.is_master = True
        self.turns = self.flushes = 0
        #: The process dies after this many more messages are stored.
        self.dies_after: int | None = None
        self.start()

    def start(self) -> None:
        self.meta = MetadataDir(self.options, fs=self.fs, clock=self.clock)
        self.store = new_store(self.fs, self.clock, SMALL)
        self.store.open()
        self.dies_after = None
        self._put = self.store.put
        self.store.put = self._counted_put  # type: ignore[method-assign]
        self.writer = make_sends(self.store, self.meta.topics, self.options, self.clock).writer
        self.ledger = Ledger(self.store, self.writer, self.meta.offsets, self.clock, HOST)
        self.clients = Clients()
        self.clients.producers = lambda group: [self] if group == GROUP else []  # type: ignore
        ages = MessageAges(self.store, self.clock)
        self.checks = TransactionChecks(self.ledger, self.writer, self.clients, self.options, self.clock, ages)
        self.counts = TransactionCounts()
        background = Background(self.store, self.writer, self.clock, lambda: self.is_master, self.flush, self.turned)
        self.part = Transactions(background, self.ledger, self.checks, self.options, Stepper(), self.counts, ages)

    @property
    def channel(self) -> Producer:
        """The channel of a member of the producer group."""
        return self.producer

    def _counted_put(self, *args: Any, **named: Any) -> PutResult:
        put = self._put(*args, **named)
        if self.dies_after is not None:
            self.dies_after -= 1
            if self.dies_after < 0:
                raise Killed
        return put

    def turned(self) -> None:
        self.turns += 1

    async def flush(self) -> None:
        self.flushes += 1
        self.store.flush()

    def recover(self) -> None:
        finish(self.ledger.recover())

    def check(self) -> int:
        return finish(self.checks.run())

    def save(self) -> None:
        progress = self.ledger.progress()
        self.store.flush()
        self.ledger.save(progress)

    def kill(self, random: Random | None = None) -> None:
        """The process dies; with ``random`` the machine loses its power."""
        self.fs = self.fs.killed() if random is None else self.fs.crash(random)
        self.start()

    def stop(self) -> None:
        self.meta.journal.close()
        self.store.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.part.run)
            yield
            await self.part.stop()
            nursery.cancel_scope.cancel()
        await self.part.close()

    # --- what producers and consumers do

    def send(self, body: bytes, properties: bytes = b"", topic: str = "t") -> PutResult:
        return self.writer.put(topic, 0, body, PROPERTIES + properties, 0, 4, 1, HOST)

    def end(self, half: PutResult, *, commit: bool, **changes: Any) -> Command | None:
        return self.ask(half.queue_offset, half.physical_offset, commit=commit, **changes)

    def ask(self, queue_offset: int, physical_offset: int, *, commit: bool, **changes: Any) -> Command | None:
        fields: dict[str, Any] = {
            "producer_group": GROUP, "tran_state_table_offset": queue_offset, "commit_log_offset": physical_offset,
            "commit_or_rollback": TRANSACTION_COMMIT if commit else TRANSACTION_ROLLBACK, **changes,
        }  # fmt: skip
        command, channel = END_TRANSACTION.command(EndTransactionRequestHeader(**fields)), cast(Channel, None)
        try:
            return self.part.end(channel, command)
        except RunInTask:
            return finish(self.part._end_old(channel, command))

    def records(self, topic: str = "t") -> list[Record]:
        return read_all(self.store, topic, 0)

    def bodies(self, topic: str = "t") -> list[bytes]:
        return [record.body for record in self.records(topic)]

    def open_halves(self) -> list[int]:
        found = []
        offset = self.ledger.first_open(0)
        while offset < self.store.max_offset(TRANS_HALF_TOPIC, 0):
            found.append(offset)
            offset = self.ledger.first_open(offset + 1)
        return found


def timed_broker(**changes: Any) -> Broker:
    """A broker whose time is trio's."""
    return Broker(TrioClock(), **changes)
