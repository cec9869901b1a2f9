"""Reads the whole store from the medium, again and again, to find damage before somebody needs the damaged bytes.

What is read often is in memory, and what is old nobody reads: so a disk may lose bytes for months before a consumer, or
a slave that copies the log, meets them, and by then the other copies may be damaged, too. A cycle takes
``scrubCycleDays``; it waits while consumers wait for the disk and while fsyncs are slow, but never for long.
A block that an older version or RocketMQ wrote has no sum: it gets a sum once its records were found sound.
`mqadmin scrub` asks for a cycle at once (7162), and how far it is (7163).
Neighbours: scrub_cycle.py (where and how fast, pure); block_reads.py (the thread); healer.py (repairs).
"""

import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from skylark.broker.damage_hold import Healer
from skylark.broker.healing.block_reads import MISSING, BlocksRead, read_blocks
from skylark.broker.healing.figures import HealingFigures
from skylark.broker.healing.other_files import CheckedFile
from skylark.broker.healing.record_pass import MAX_RECORD_BYTES, RecordPass, Unsound
from skylark.broker.healing.scrub_cycle import DAY_S, Cycle, Pace, cycle_rate
from skylark.broker.healing.scrub_note import ScrubNote, read_note, write_note
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.store.log.segment import Segment
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.block_sums import BLOCK_BYTES, Block
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import DiskFull, RequestRefused
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.polling import poll_until
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.answers import answer_with
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.scrubs import SCRUB, SCRUB_STATUS, ScrubStatus

logger = logging.getLogger(__name__)

# Blocks of one step: a hop to a thread and back costs as much as the sum of a block.
STEP_BLOCKS = 16
# The rate of a scrub that an administrator asks for without one: some 6 % of a core.
ASKED_BYTES_PER_S = 64 * 1024 * 1024
# The most where records are read, which costs ten times as much.
RECORDS_BYTES_PER_S = 16 * 1024 * 1024
# The least where records are read: 3 % of a core for messages of 1,000 bytes, 10 % for 200. A block without a sum is
# the worst protected, and its records are read only once.
LEAST_RECORDS_BYTES_PER_S = 4 * 1024 * 1024
# A small store is not read all day long.
LEAST_CYCLE_MS = DAY_S * 1000
# How often it is looked whether a cycle is due; also the time after a start in which a broker has other work.
REST_S = 60.0
# How long a step waits at most for those who wait for the disk: the scrub of a busy disk must end, too.
MAX_HELD_UP_S = 1.0
_HELD_UP_POLL_S = 0.05
# How often blocks that could not be repaired are tried again: a peer may have come back.
RETRY_S = 600.0
NOTE_INTERVAL_S = 600.0
# Blocks that the healer gets at once.
HEALED_AT_ONCE = 64
# Problems that the status names.
MAX_PROBLEMS = 100


class LogRepair(Healer, Protocol):
    """Repairs blocks of the log; see `LogHealer`."""

    figures: HealingFigures


class FileChecks(Protocol):
    """Checks, and mends, the files beside the log; see `OtherFiles`."""

    async def check_next(self) -> CheckedFile | None:
        """Check the next file, or a part of it; None when all are checked. The call after that begins anew."""


@lazy_dataclass(slots=True)
class ScrubFigures:
    """Counts since the start of the broker, and of the cycle that runs or ran last."""

    blocks_checked: int = 0
    #: Blocks that got a sum since all of their records were sound.
    blocks_sealed: int = 0
    problems: int = 0
    mended: int = 0
    #: When all of the store was checked last, by the wall clock; 0: never.
    last_ended_ms: int = 0


@lazy_dataclass(slots=True)
class _Round:
    """What was asked for, and what was found in the cycle that runs or ran last."""

    asked_ms: int = 0
    bytes_per_s: int = 0
    #: The bytes of the log in a cycle that has ended.
    checked_bytes: int = 0
    problems: int = 0
    mended: int = 0
    texts: tuple[str, ...] = ()


class Scrub(Part):
    """Scrubs one store."""

    def __init__(
        self,
        fs: FileSystem,
        options: BrokerOptions,
        store: MessageStore,
        healer: LogRepair,
        others: FileChecks,
        clock: Clock,
        *,
        sealed_to: Callable[[], int],
        is_held_up: Callable[[], bool],
        choose: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        """``sealed_to``: nobody else gives sums to blocks before this offset of the log.

        ``is_held_up``: whether others wait for the disk. ``choose(count)`` picks the file, of ``count``, to begin at.
        """
        self._fs = fs
        self._options = options
        self._store = store
        self._healer = healer
        self._others = others
        self._clock = clock
        self._sealed_to = sealed_to
        self._is_held_up = is_held_up
        self._choose = choose
        self.figures = ScrubFigures()
        self._cycle: Cycle | None = None
        self._round = _Round()
        self._last_began_ms = 0
        self._records: RecordPass | None = None
        # Where the record pass began again last, after a repair: never twice at one place, so that it ends.
        self._began_again_at = -1
        # The record pass must come to here.
        self._read_records_to = 0
        # The starts of damaged blocks, which are checked before all others, and when they are collected again.
        self._suspects: deque[int] = deque()
        self._next_suspects = float("-inf")
        # Whether a round over the other files has begun; whether the cycle began within it, and so needs another one.
        self._is_amid_others = self._needs_other_round = False
        self._pace = Pace()
        self._asked = Signal()
        self._next_note = 0.0
        self._noted = ScrubNote()
        # The work has a thread of its own: a disk with errors holds it for long.
        self._thread = trio.CapacityLimiter(1)

    def handlers(self) -> dict[int, Handler]:
        return {SCRUB.code: self.begin, SCRUB_STATUS.code: self.status}

    def begin(self, channel: Channel, request: Command) -> Command:
        """7162: check the whole store now."""
        wanted = SCRUB.header(request).bytes_per_second
        if wanted < 0:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{wanted} bytes a second are no rate: give 1 or more")
        if self._cycle is not None and self._round.asked_ms:
            percent = self._cycle.percent(self._store.log.start)
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"a scrub is running, {percent} % of the log is checked: try again when it is done"
                " (mqadmin scrub --status)",
            )
        self.begin_now(wanted or ASKED_BYTES_PER_S)
        logger.info("a scrub at %d bytes a second is wanted by %s", self._round.bytes_per_s, channel.remote)
        return answer_with(SCRUB, request, self.present(), channel.max_frame_bytes)

    def status(self, channel: Channel, request: Command) -> Command:
        """7163: how far the scrub is, and what it has found."""
        return answer_with(SCRUB_STATUS, request, self.present(), channel.max_frame_bytes)

    def begin_now(self, bytes_per_s: int) -> None:
        """Check the whole store now, at this rate, and not at the usual time."""
        self._begin(self._store.log.start, asked=True, bytes_per_s=bytes_per_s)
        self._asked.set()

    def present(self) -> ScrubStatus:
        """The state of the scrub now."""
        cycle, start, found = self._cycle, self._store.log.start, self._round
        total = max(cycle.stop - start, 0) if cycle else found.checked_bytes
        return ScrubStatus(
            enabled=self._options.scrub_enable,
            running=cycle is not None,
            held_up=self._is_held_up(),
            asked_ms=found.asked_ms,
            began_ms=cycle.began_ms if cycle else self._last_began_ms,
            bytes_per_second=round(self._rate()),
            checked_bytes=max(total - (cycle.left_bytes(start) if cycle else 0), 0),
            total_bytes=total,
            percent=self.percent,
            problem_count=found.problems,
            mended_count=found.mended,
            problems=list(found.texts),
            suspects=self._healer.figures.unrepaired,
            last_ended_ms=self.figures.last_ended_ms,
        )

    @property
    def healing(self) -> HealingFigures:
        """What was repaired, and what could not be."""
        return self._healer.figures

    def rows(self) -> dict[str, str]:
        """Rows for brokerStatus (28): damage of the disk, found and repaired."""
        figures, healing = self.figures, self.healing
        return {
            "scrubPercent": str(self.percent),
            "lastScrubEndMs": str(figures.last_ended_ms),
            "scrubProblems": str(figures.problems),
            "scrubProblemsMended": str(figures.mended),
            "blocksRepaired": str(healing.blocks_repaired),
            "bytesRepaired": str(healing.bytes_repaired),
            "blocksDamaged": str(healing.unrepaired),
            "blocksUnreadable": str(healing.unreadable),
            "blocksUnstable": str(healing.unstable),
            "logFilesMadeAnew": str(healing.files_made_anew),
            "sumFilesLost": str(len(self._store.sums_lost)),
            "badBlocksInCycle": str(healing.bad_in_cycle),
            "diskIsFailing": str(healing.is_disk_failing).lower(),
        }

    @property
    def percent(self) -> int:
        """The part of the log that the cycle has checked; 100 between two cycles."""
        return 100 if self._cycle is None else self._cycle.percent(self._store.log.start)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        self._take(await trio.to_thread.run_sync(read_note, self._fs, self._options.store_path_root_dir))
        task_status.started()
        await self._rest(REST_S)
        while True:
            if self._has_suspects():
                await self._wait_turn()
                await self._check_suspect(self._suspects.popleft())
            elif self._has_work():
                await self._wait_turn()
                await self._step()
            else:
                await self._rest(REST_S)
            await self._note_if_due()

    async def stop(self) -> None:
        """Keep the place for the next start."""
        await self._note()

    # --- cycles

    def _take(self, note: ScrubNote) -> None:
        self._noted = note
        self._cycle, self._last_began_ms = note.cycle, note.last_began_ms
        self.figures.last_ended_ms = note.last_ended_ms
        self._suspects = deque(note.suspects)

    def _has_work(self) -> bool:
        """Whether there is a cycle to go on with; begins one if it is time."""
        if not self._options.scrub_enable:
            return self._cycle is not None and self._round.asked_ms > 0
        if self._cycle is not None:
            return True
        log, since_ms = self._store.log, self._clock.now_ms() - self._last_began_ms
        # A clock that was set back must not delay a cycle by years.
        if 0 <= since_ms < LEAST_CYCLE_MS or self._stop() <= log.start:
            return False
        # Blocks without sums first: of a store that an older version or RocketMQ has written, these are the old files.
        first = log.chain.at(log.sums.next_unsealed(log.start).start)
        if first is None or first.end > self._stop():
            files = -(-(self._stop() - log.start) // log.chain.segment_bytes)
            first = log.chain.segments[self._choose(files)]
        self._begin(first.base, asked=False, bytes_per_s=0)
        return True

    def _begin(self, first: int, *, asked: bool, bytes_per_s: int) -> None:
        now_ms = self._clock.now_ms()
        self._cycle = Cycle.begun(first, self._stop(), now_ms)
        # Two scrubs within a millisecond are told apart, too.
        asked_ms = max(now_ms, self._round.asked_ms + 1) if asked else 0
        self._round = _Round(asked_ms, bytes_per_s)
        self._healer.figures.begin_cycle()
        self._records = None
        self._needs_other_round = self._is_amid_others
        self._pace = Pace()

    def _end(self, cycle: Cycle) -> None:
        figures, found, now_ms = self.figures, self._round, self._clock.now_ms()
        self._cycle, self._records = None, None
        self._last_began_ms, figures.last_ended_ms = cycle.began_ms, now_ms
        self._next_note = 0.0
        log = logger.warning if found.problems > found.mended else logger.info
        log(
            "scrub: the store was checked: log=%d to %d problems=%d mended=%d unrepaired=%d s=%d",
            self._store.log.start, cycle.stop, found.problems, found.mended, self._healer.figures.unrepaired,
            (now_ms - cycle.began_ms) // 1000,
        )  # fmt: skip
        found.bytes_per_s, found.checked_bytes = 0, cycle.stop - self._store.log.start

    def _stop(self) -> int:
        """The end of the blocks that are checked: only whole ones that nobody changes any more."""
        log, to = self._store.log, self._sealed_to()
        block = log.sums.block_at(to)
        return max(block.start if block.end > to else to, log.start)

    def _rate(self) -> float:
        log = self._store.log
        return self._round.bytes_per_s or cycle_rate(log.end - log.start, self._options.scrub_cycle_days)

    async def _rest(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._asked.wait()

    async def _wait_turn(self) -> None:
        """Return when the next step may read."""
        while wait_s := self._pace.wait_s(trio.current_time()):
            await self._rest(wait_s)
        await poll_until(lambda: not self._is_held_up(), MAX_HELD_UP_S, _HELD_UP_POLL_S)

    # --- steps

    async def _step(self) -> None:
        """Check the next blocks, or, after the last one, the next of the other files; then the cycle ends."""
        assert self._cycle is not None
        log = self._store.log
        cycle = self._cycle = self._cycle.within(log.start, self._stop())
        if cycle.is_done:
            await self._check_other_file(cycle)
            return
        segment = log.chain.at(cycle.at)
        assert segment is not None, "the cycle is within the log"
        blocks = self._next_blocks(segment, cycle)
        end = blocks[-1].end
        read = await self._read(segment, blocks, self._records)
        # A scrub that was asked for meanwhile is another cycle.
        if self._cycle is not cycle:
            return
        if read is None:
            self._records = None
            return
        self._cycle = cycle = cycle.after(end)
        if self._records is not None and end >= min(cycle.limit, segment.end):
            read.unsound += self._records.end()
            self._records = None
        self.figures.blocks_checked += len(blocks)
        await self._seal_and_heal(segment, read)
        if (again := await self._heal_unsound(segment, read.unsound)) is not None and self._cycle is cycle:
            # The bytes from there on were repaired: their records are read once more, to give their blocks sums.
            self._records, self._began_again_at = RecordPass(again, segment.end), again
            self._cycle = cycle.after(log.sums.block_at(again).start)

    def _next_blocks(self, segment: Segment, cycle: Cycle) -> list[Block]:
        """The next blocks of ``segment``; `_records` is None afterwards if nobody need read their records."""
        sums = self._store.log.sums
        blocks = list(sums.blocks(cycle.at, min(cycle.at + STEP_BLOCKS * BLOCK_BYTES, cycle.limit, segment.end)))
        without = next((number for number, block in enumerate(blocks) if sums.sum_of(block) is None), None)
        records = self._records
        if records is not None and records.fed_to == blocks[0].start:
            is_needed = (
                records.fed_to < self._read_records_to
                or records.is_amid_unsound
                or any(sums.sum_of(block) is None for block in records.waiting)
            )
            if is_needed or without == 0:
                return blocks
        self._records = None
        if without is None:
            return blocks
        if without:
            return blocks[:without]
        # The record that begins before the block may be the largest one.
        start = sums.block_at(max(blocks[0].start - MAX_RECORD_BYTES, segment.base)).start
        self._records = RecordPass(start, segment.end, searches=start > segment.base)
        self._read_records_to, self._began_again_at = blocks[0].end, -1
        return [sums.block_at(start)]

    async def _read(self, segment: Segment, blocks: list[Block], records: RecordPass | None) -> BlocksRead | None:
        """Read ``blocks`` of ``segment``; None if their file was removed, or the log was cut, meanwhile."""
        log = self._store.log
        cuts = log.sums.cuts
        rate = self._rate()
        if records is not None:
            rate = min(max(rate, LEAST_RECORDS_BYTES_PER_S), RECORDS_BYTES_PER_S)
        self._pace.spend(sum(block.size for block in blocks), rate, trio.current_time())
        read = await trio.to_thread.run_sync(
            read_blocks, self._fs, segment.path, segment.base, blocks, log.sums, records,
            limiter=self._thread, abandon_on_cancel=True,
        )  # fmt: skip
        return None if log.sums.cuts != cuts or blocks[0].start < log.start else read

    async def _seal_and_heal(self, segment: Segment, read: BlocksRead) -> None:
        sums = self._store.log.sums
        for block, crc in read.sound:
            self.figures.blocks_sealed += sums.seal(block, crc)
        missing = [block for block, reason in read.wrong if reason == MISSING]
        if missing:
            await self._heal(segment, missing, segment.base, MISSING)
        for block, reason in read.wrong:
            if reason != MISSING:
                await self._heal(segment, [block], block.start, reason)

    async def _heal_unsound(self, segment: Segment, found: Sequence[Unsound]) -> int | None:
        """Heal the blocks that hold unsound bytes; returns where the records should be read again, if anywhere."""
        sums, again = self._store.log.sums, None
        for start, end, reason in found:
            # Blocks that have sums are judged by them: their bytes are those that were written.
            blocks = [block for block in sums.blocks(start, end) if sums.sum_of(block) is None]
            if blocks and await self._heal(segment, blocks, start, reason) and start > self._began_again_at:
                again = start if again is None else again
        return again

    async def _heal(self, segment: Segment, blocks: Sequence[Block], at: int, reason: str) -> bool:
        """Have ``blocks`` repaired, in which ``at`` is the first wrong byte that is known."""
        damaged, is_mended = self._healer.figures.damaged, True
        is_new = not all(block.start in damaged for block in blocks)
        if reason == MISSING:  # one problem for all blocks of the file
            is_new = not any(segment.base <= start < segment.end for start in damaged)
        for first in range(0, len(blocks), HEALED_AT_ONCE):
            is_mended &= await self._healer.heal(blocks[first : first + HEALED_AT_ONCE])
        self._found(f"{segment.path}: offset {at - segment.base}: {reason}", is_new=is_new, is_mended=is_mended)
        return is_mended

    def _found(self, text: str, *, is_mended: bool, is_new: bool = True) -> None:
        for counts in (self.figures, self._round):
            counts.problems += is_new
            counts.mended += is_mended
        if is_new or is_mended:
            text += "; repaired" if is_mended else "; NOT repaired"
            if not is_mended:
                logger.error("scrub: %s", text)
            self._round.texts = (*self._round.texts, text)[:MAX_PROBLEMS]

    async def _check_other_file(self, cycle: Cycle) -> None:
        checked = await self._others.check_next()
        if checked is not None:
            self._is_amid_others = True
            self._pace.spend(checked.size, self._rate(), trio.current_time())
            if checked.problem:
                self._found(f"{checked.path}: {checked.problem}", is_mended=checked.is_mended)
            return
        self._is_amid_others = False
        if self._cycle is cycle and not self._needs_other_round:
            self._end(cycle)
        self._needs_other_round = False

    # --- suspects

    def _has_suspects(self) -> bool:
        now = trio.current_time()
        if not self._suspects and now >= self._next_suspects:
            self._suspects.extend(sorted(self._healer.figures.damaged))
            self._next_suspects = now + RETRY_S
        return bool(self._suspects)

    async def _check_suspect(self, start: int) -> None:
        log, damaged = self._store.log, self._healer.figures.damaged
        block, segment = log.sums.block_at(start), log.chain.at(start)
        if segment is None or block.start != start or start >= log.raw_end:
            damaged.discard(start)  # the file was removed, or the log was cut
        elif log.sums.sum_of(block) is not None:
            read = await self._read(segment, [block], None)
            if read is None:
                return
            if not read.wrong:
                damaged.discard(start)
            self.figures.blocks_checked += 1
            await self._seal_and_heal(segment, read)
        elif start in damaged:
            # It has no sum, or is not full yet: readers have found the damage, or the pass over records has.
            await self._heal(segment, [block], start, "is damaged")

    # --- the note

    async def _note_if_due(self) -> None:
        if trio.current_time() >= self._next_note:
            await self._note()

    async def _note(self) -> None:
        self._next_note = trio.current_time() + NOTE_INTERVAL_S
        # A scrub that was asked for is not continued: the next start does not know who waits for it.
        cycle = None if self._round.asked_ms else self._cycle
        note = ScrubNote(
            cycle,
            self._last_began_ms,
            self.figures.last_ended_ms,
            tuple(sorted({*self._suspects, *self._healer.figures.damaged})),
        )
        if note == self._noted:
            return
        try:
            await trio.to_thread.run_sync(write_note, self._fs, self._options.store_path_root_dir, note)
            self._noted = note
        except (DiskFull, OSError) as error:
            # Only the place of the scrub is lost.
            logger.warning("the place of the scrub cannot be kept: %s", error)
