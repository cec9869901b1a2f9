"""The figures of replication: how far each slave is behind, in bytes and in time, and how fast it copies.

haStatus, brokerStatus and metrics show them.

The ack ledger and the links keep plain integers, which `sample` records once a second. A slave's lag in time is the age
of the first sample at which the log had more than the slave has now. So it is accurate to about a second, and at most
the time that the samples span.
"""

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable

from skylark.broker.observe.meter import SECOND_MS, SampleWindow
from skylark.broker.part import Part
from skylark.broker.replication.role import RoleMachine
from skylark.broker.store.store import MessageStore
from skylark.broker.writing.durability import Durability
from skylark.broker.writing.waits import AckLedger, ConnectedSlave
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.metrics.metric import Histogram
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.brokers import (
    GET_BROKER_HA_STATUS,
    RESET_MASTER_FLUSH_OFFSET,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)

logger = logging.getLogger(__name__)

# Over an hour.
MAX_SAMPLES = 4096
RATE_SPAN_MS = 10 * SECOND_MS
# Slaves that are away are shown for this long (then they were probably taken out of service), and at most this many.
AWAY_MS = 24 * 3600 * SECOND_MS
MAX_REMEMBERED = 64
# The key of brokerStatus; mqadmin doctor shows it.
GROUP_PROBLEM = "dledgerProblem"
#: A damaged record of a copied log, which keeps the messages after it from being shown.
COPY_PROBLEM = "copiedLogProblem"


@lazy_dataclass(frozen=True, slots=True)
class SlaveState:
    """A slave, as its master sees it. ``broker_addr``: its address for clients, if known; ``addr``: of its link."""

    addr: str
    broker_addr: str
    acked: int
    behind_bytes: int
    behind_ms: int
    in_sync: bool
    next_offset: int
    bytes_per_second: int


class EndTimes:
    """When the log reached which end."""

    def __init__(self, max_samples: int = MAX_SAMPLES) -> None:
        self._ends: deque[int] = deque(maxlen=max_samples)
        self._times: deque[int] = deque(maxlen=max_samples)

    def sample(self, end: int, now_ms: int) -> None:
        if not self._ends or end > self._ends[-1]:
            self._ends.append(end)
            self._times.append(now_ms)

    def behind_ms(self, offset: int, now_ms: int) -> int:
        """How long the log has had more than ``offset``."""
        index = bisect_right(self._ends, offset)
        return now_ms - self._times[index] if index < len(self._times) else 0


class ReplicationStats:
    """The samples of replication. ``log_end`` returns the end of the master's log."""

    def __init__(self, acks: AckLedger, durability: Durability, log_end: Callable[[], int], clock: Clock) -> None:
        self._acks = acks
        self._durability = durability
        self._log_end = log_end
        self._clock = clock
        self._end_times = EndTimes()
        self._sent: dict[str, SampleWindow] = {}
        # When slaves were connected last, by their addresses for clients; the most recent is the last.
        self._seen_ms: dict[str, int] = {}
        #: How far slaves were behind (ms), at each sample.
        self.behind_ms = Histogram()
        #: What keeps members of this broker's DLedger group from getting entries; "" if nothing does.
        self.problem: Callable[[], str] = str
        #: See COPY_PROBLEM; "" if there is none.
        self.copy_problem: Callable[[], str] = str

    def sample(self) -> None:
        """Take a sample; called once a second."""
        now_ms = self._clock.now_ms()
        self._end_times.sample(self._log_end(), now_ms)
        slaves = {slave.addr: slave.sent_bytes for slave in self._acks.slaves()}
        for addr in self._sent.keys() - slaves.keys():
            del self._sent[addr]
        for addr, sent_bytes in slaves.items():
            window = self._sent.get(addr)
            if window is None:
                window = self._sent[addr] = SampleWindow(RATE_SPAN_MS, SECOND_MS, now_ms, (sent_bytes,))
            window.sample(now_ms, (sent_bytes,))
        for slave in self.slaves():
            self.behind_ms.add(slave.behind_ms)
            if slave.broker_addr:
                self._seen_ms.pop(slave.broker_addr, None)
                self._seen_ms[slave.broker_addr] = now_ms
        while len(self._seen_ms) > MAX_REMEMBERED:
            del self._seen_ms[next(iter(self._seen_ms))]

    def slaves(self) -> list[SlaveState]:
        """The connected slaves, oldest connection first."""
        now_ms, end = self._clock.now_ms(), self._log_end()
        return [self._state(slave, end, now_ms) for slave in self._acks.slaves()]

    def table(self) -> dict[str, str]:
        """For brokerStatus, with Skylark's own keys. They name slaves by their addresses for clients, if known."""
        table = {
            "sendsThatWait": str(len(self._durability)),
            "slaveNotAvailableTimes": str(self._durability.not_available),
            "flushSlaveTimeoutTimes": str(self._durability.timed_out),
        }
        if problem := self.problem():
            table[GROUP_PROBLEM] = problem
        if problem := self.copy_problem():
            table[COPY_PROBLEM] = problem
        for slave in self.slaves():
            name = slave.broker_addr or slave.addr
            table[f"slaveAckDiff_{name}"] = str(slave.behind_bytes)
            table[f"slaveBehindMs_{name}"] = str(slave.behind_ms)
        for name, away_ms in self._away().items():
            table[f"slaveAwayMs_{name}"] = str(away_ms)
        return table

    def _away(self) -> dict[str, int]:
        """How long slaves have been away that were connected once, by their addresses for clients."""
        now_ms, connected = self._clock.now_ms(), {slave.identity for slave in self._acks.slaves()}
        away = {name: now_ms - seen_ms for name, seen_ms in self._seen_ms.items() if name not in connected}
        return {name: away_ms for name, away_ms in away.items() if 0 <= away_ms < AWAY_MS}

    def _state(self, slave: ConnectedSlave, end: int, now_ms: int) -> SlaveState:
        rate = 0
        if window := self._sent.get(slave.addr):
            seconds, (before,) = window.since(now_ms)
            rate = round((slave.sent_bytes - before) / seconds)
        # Without a report the slave has nothing, as far as is known.
        acked = max(slave.acked, 0)
        return SlaveState(
            slave.addr,
            slave.identity,
            slave.acked,
            end - acked,
            self._end_times.behind_ms(acked, now_ms) if acked < end else 0,
            self._acks.is_in_sync(slave, end),
            slave.next_offset,
            rate,
        )


@lazy_dataclass(slots=True)
class SlaveProgress:
    """How far a slave is with copying: slave.py updates it, haStatus shows it.

    ``master_addr`` is the address of the master's HA port, "" while unknown. Times are of the wall clock.
    """

    master_addr: str = ""
    received_bytes: int = 0
    last_read_ms: int = 0
    last_write_ms: int = 0
    #: How far the log is on the master's disk: its last report, or the value set by resetMasterFlushOffset.
    master_flush_offset: int = 0


class HaHandlers(Part):
    """907 shows the state of replication, 908 sets how far a slave believes its master's disk to be.

    ``replication`` is for a master, ``progress`` for a slave.
    """

    tick_interval_ms = SECOND_MS

    def __init__(
        self,
        role: RoleMachine,
        store: MessageStore,
        replication: ReplicationStats,
        progress: SlaveProgress,
        clock: Clock,
    ) -> None:
        self._role = role
        self._store = store
        self._replication = replication
        self._progress = progress
        self._clock = clock
        self._received = SampleWindow(RATE_SPAN_MS, SECOND_MS, clock.now_ms(), (0,))

    def handlers(self) -> dict[int, Handler]:
        return {
            GET_BROKER_HA_STATUS.code: self.status,
            RESET_MASTER_FLUSH_OFFSET.code: self.reset_master_flush_offset,
        }

    def tick(self) -> None:
        """Take samples for the rates."""
        self._replication.sample()
        self._received.sample(self._clock.now_ms(), (self._progress.received_bytes,))

    def status(self, channel: Channel, request: Command) -> Command:
        """907: how far each slave has copied the log of this master, or what a slave says of its own copy."""
        return answer_with(GET_BROKER_HA_STATUS, request, self._slave() if self._role.now.follows else self._master())

    def reset_master_flush_offset(self, channel: Channel, request: Command) -> Command:
        """908: a master accepts it and does nothing, as in RocketMQ."""
        offset = RESET_MASTER_FLUSH_OFFSET.header(request).master_flush_offset
        if offset < 0:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"masterFlushOffset is {offset}, it must not be below 0"
            )
        if self._role.now.follows:
            self._progress.master_flush_offset = offset
            logger.info("master flush offset set to %d by %s", offset, channel.remote)
        return request.respond()

    def _master(self) -> HARuntimeInfo:
        slaves = self._replication.slaves()
        rows = [
            HAConnectionRuntimeInfo(
                each.addr, each.acked, each.behind_bytes, each.in_sync, each.bytes_per_second, each.next_offset
            )
            for each in slaves
        ]
        return HARuntimeInfo(True, self._store.log.end, sum(each.in_sync for each in slaves), rows)

    def _slave(self) -> HARuntimeInfo:
        progress = self._progress
        seconds, (before,) = self._received.since(self._clock.now_ms())
        client = HAClientRuntimeInfo(
            progress.master_addr or None,
            round((progress.received_bytes - before) / seconds),
            self._store.log.end,
            progress.last_read_ms,
            progress.last_write_ms,
            progress.master_flush_offset,
        )
        return HARuntimeInfo(False, ha_client_runtime_info=client)
