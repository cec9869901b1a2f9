"""Heals blocks of the log: finds out which bytes are right, and writes them.

A block is read from the medium and from memory. If one of these matches the block's sum, no other replica is needed;
else the others are asked, and judgement.py decides. What nobody can decide is not overwritten: all copies are kept in
``damaged/``, and the log says so. Whoever needs a block waits for the same repair; a repair that failed is not tried
again before `RETRY_S`.
Neighbours: peers.py (asks), rewriting.py (the disk), serving.py (what others ask), figures.py (counts).
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from skylark.broker.healing.figures import MAX_REPAIRED_A_CYCLE, HealingFigures
from skylark.broker.healing.judgement import Copy, EntrySum, Verdict, judge
from skylark.broker.healing.repaired_entries import give_entries
from skylark.broker.healing.rewriting import MARGINS, LogBlocks, Reading
from skylark.broker.part import Part
from skylark.broker.store.log.segment import Segment
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.block_sums import Block, BlockSum
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.errors import FileClosed, StoreError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

logger = logging.getLogger(__name__)

# Blocks that are healed at once, and that wait for that.
AT_ONCE = 4
MAX_WAITING = 1_000
TIMEOUT_S = 30.0
# After a repair that failed: others may come back meanwhile.
RETRY_S = 1.0

#: The entries of a DLedger group that have bytes of a block; none in other sets, or when their slots are damaged.
EntriesOf = Callable[[Block], Sequence[EntrySum]]


def no_entries(block: Block) -> Sequence[EntrySum]:
    """The `EntriesOf` of a set that is no DLedger group."""
    return ()


class OtherReplicas(Protocol):
    """The logs of the other replicas: `PeerLogs`."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None: ...

    async def copies(self, block: Block, own: Copy, own_sum: BlockSum | None) -> list[Copy]:
        """What the others have where ``own`` has its bytes; ``own_sum``: as soon as a copy matches, it is enough."""


@lazy_dataclass(slots=True, eq=False)
class _Repair:
    """A repair of one block, and those who wait for it."""

    done: trio.Event
    is_right: bool = False


class LogHealer(Part):
    """Heals the blocks of one store.

    ``writing`` is held while a block is written again, so that the log is not cut meanwhile; ``lock`` while a file of
    the log is replaced, so that none is removed either.
    """

    def __init__(
        self,
        store: MessageStore,
        blocks: LogBlocks,
        others: OtherReplicas,
        writing: trio.Lock,
        lock: trio.Lock,
        entries_of: EntriesOf = no_entries,
    ) -> None:
        self._store = store
        self._blocks = blocks
        self._others = others
        self._lock = lock
        self._entries_of = entries_of
        self.figures = HealingFigures()
        #: Called in the event loop with blocks that were repaired.
        self.on_repaired: list[Callable[[Sequence[Block]], None]] = []
        self._repairs: dict[int, _Repair] = {}
        self._failed_at: dict[int, float] = {}
        self._slots = trio.CapacityLimiter(AT_ONCE)
        self._writing = writing
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Heal what is found, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await self._nursery.start(self._others.run)
            task_status.started()
            await trio.sleep_forever()

    async def heal(self, blocks: Sequence[Block]) -> bool:
        """Whether all ``blocks`` are right now, so that they may be read again at once. A repair goes on if the caller
        is cancelled.
        """
        repairs = [self._begin(block, is_suspect=False) for block in blocks]
        for repair in repairs:
            if repair is not None:
                await repair.done.wait()
        return all(repair is not None and repair.is_right for repair in repairs)

    def suspect(self, blocks: Sequence[Block]) -> None:
        """Compare ``blocks``, which may be right here, with other replicas in the background, and heal them."""
        for block in blocks:
            self._begin(block, is_suspect=True)

    def _begin(self, block: Block, *, is_suspect: bool) -> _Repair | None:
        """The repair of the block; None if none can be begun now."""
        repair = self._repairs.get(block.start)
        if repair is None and self._nursery is not None and len(self._repairs) < MAX_WAITING:
            repair = self._repairs[block.start] = _Repair(trio.Event())
            self._nursery.start_soon(self._run_repair, block, repair, is_suspect)
        return repair

    async def _run_repair(self, block: Block, repair: _Repair, is_suspect: bool) -> None:
        try:
            async with self._slots:
                await trio.sleep_until(self._failed_at.get(block.start, -math.inf) + RETRY_S)
                with trio.move_on_after(TIMEOUT_S) as scope:
                    repair.is_right = await self._heal(block, is_suspect)
                if scope.cancelled_caught:
                    logger.warning("the repair of the block at %d of the log took over %d s", block.start, TIMEOUT_S)
        except FileClosed:
            # The log has no such bytes any more.
            repair.is_right = True
        except FileNotFoundError:
            repair.is_right = self._store.log.chain.at(block.start) is None
            if not repair.is_right:
                self._miss_file(block)
        except (OSError, StoreError) as error:
            self._fail(block, f"it cannot be written: {error}")
        except Exception:
            # A fault of the repair must not end the broker, whose other blocks are sound.
            logger.exception("the repair of the block at %d of the log failed", block.start)
        finally:
            del self._repairs[block.start]
            if repair.is_right:
                self._failed_at.pop(block.start, None)
                self.figures.damaged.discard(block.start)
                self.figures.of_missing_files.pop(self._path_of(block), None)
            elif len(self._failed_at) < MAX_WAITING or block.start in self._failed_at:
                self._failed_at[block.start] = trio.current_time()
            repair.done.set()

    async def _heal(self, whole: Block, is_suspect: bool) -> bool:
        log = self._store.log
        segment = log.chain.at(whole.start)
        # Bytes after the end belong to whoever appends.
        block = Block(whole.start, min(whole.end, log.raw_end) - whole.start)
        if segment is None or block.size <= 0:
            return True
        own_sum, tail = log.sums.sum_of(whole) if block == whole else None, self._store.damaged_tail
        if own_sum is None and tail is not None and tail.part.start == whole.start and not log.cuts:
            if not await self._heal_bytes(segment, whole, tail.part, tail.sum, is_suspect):
                return False
            if block != whole:
                return True  # the records after these bytes are checked when they are read
        return await self._heal_bytes(segment, whole, block, own_sum, is_suspect)

    async def _heal_bytes(
        self, segment: Segment, whole: Block, block: Block, own_sum: BlockSum | None, is_suspect: bool
    ) -> bool:
        """Heal ``block``, which is ``whole`` or its first bytes. ``own_sum``: the sum of ``block``, if known."""
        log = self._store.log
        cuts, is_sealed = log.cuts, own_sum is not None and block == whole

        def is_right(data: bytes) -> bool:
            return own_sum is not None and large_crc32(data) == own_sum.crc

        now = await trio.to_thread.run_sync(self._blocks.read, segment, block, is_right)
        self._count(block, now)
        others: list[Copy] = []
        found = next((data for data in (*now.on_disk, now.in_memory) if is_right(data)), None)
        if found is not None and not is_suspect:
            verdict = Verdict(found, "this broker has the bytes of the block's sum", is_whole=True)
        else:
            verdict, others = await self._ask(segment, block, own_sum, now, has_sums=block == whole)
        if log.cuts != cuts:
            return False  # other bytes may be there now
        if verdict.right is None or (verdict.undecided and not (now.is_stable and now.is_readable)):
            await self._keep(block, now, others)
            self._fail(block, verdict.undecided or verdict.why)
            return False
        if not await self._apply(segment, block, now, verdict, cuts):
            return False
        if is_sealed and verdict.is_whole and not is_right(verdict.right) and log.cuts == cuts:
            log.sums.replace(whole, large_crc32(verdict.right), is_attested=False)
        if verdict.is_whole:
            return True
        if verdict.undecided:
            await self._keep(block, now, others)
            self._fail(block, verdict.undecided)
            return False
        if now.on_disk != (verdict.right,) or now.in_memory != verdict.right:
            return True
        # All replicas have the same bytes. At the end of the log a record is not whole yet.
        if block == whole:
            self._fail(block, f"not all of it is of sound records, and {verdict.why}")
        return False

    def _count(self, block: Block, now: Reading) -> None:
        figures = self.figures
        if not now.is_readable:
            figures.unreadable += 1
            logger.error("the disk cannot read all of the block at %d of the log", block.start)
        elif not now.is_stable:
            figures.unstable += 1
            logger.error("the disk reads the block at %d of the log otherwise each time: replace it", block.start)

    async def _ask(
        self, segment: Segment, block: Block, own_sum: BlockSum | None, now: Reading, *, has_sums: bool
    ) -> tuple[Verdict, list[Copy]]:
        """The verdict, and the copies of the other replicas. ``has_sums``: the replicas' sums cover just ``block``."""
        entries = self._entries_of(block)
        verdict, others = Verdict(None, "no replica was asked"), list[Copy]()
        for margin in MARGINS:
            start = max(min([block.start - margin, *(each.start for each in entries)]), segment.base)
            end = max([block.end + margin, *(each.start + each.size for each in entries)])
            end = min(end, segment.end, self._store.log.raw_end)
            before = await trio.to_thread.run_sync(self._blocks.around, segment, start, block.start)
            after = await trio.to_thread.run_sync(self._blocks.around, segment, block.end, end)
            # What an unstable disk gives counts for nothing unless a sum proves it.
            has_vote = now.is_stable and now.is_readable
            mine = [
                Copy("this disk", start, before + data + after, has_vote=has_vote, is_own=True) for data in now.on_disk
            ]
            if now.in_memory not in now.on_disk:
                mine.append(Copy("memory", start, before + now.in_memory + after, has_vote=False, is_own=True))
            others = await self._others.copies(block, mine[0], own_sum)
            if not has_sums:
                others = [copy._replace(sum=None) for copy in others]
            size = self._store.log.chain.segment_bytes
            verdict = await trio.to_thread.run_sync(judge, block, own_sum, [*mine, *others], size, entries)
            if not verdict.lacks_records or not others:
                break
        return verdict, others

    async def _apply(self, segment: Segment, block: Block, now: Reading, verdict: Verdict, cuts: int) -> bool:
        """Let memory and disk have the right bytes; whether they have them now.

        ``cuts``: `CommitLog.cuts` when the block was read. After a cut other bytes may be there.
        """
        right, figures = verdict.right, self.figures
        assert right is not None
        if now.on_disk == (right,) and now.in_memory == right:
            return True
        async with self._writing:
            if self._store.log.cuts != cuts:
                return False
            is_read_again = now.on_disk == (right,) and await trio.to_thread.run_sync(
                self._blocks.drop, segment, block, right
            )
            if not is_read_again:
                kept = await trio.to_thread.run_sync(self._blocks.keep, block, "disk", now.on_disk[0])
                is_written = await trio.to_thread.run_sync(self._blocks.rewrite, segment, block, right, now)
        if is_read_again:
            figures.memory_only += 1
            text = "the block at %d of the log was damaged in memory, not on disk: it was read again (%s)"
            logger.warning(text, block.start, verdict.why)
            await self._tell(block)
            return True
        # Not within ``writing``, as a cut waits for both locks in the other order.
        if not is_written and not await self._make_file_anew(segment, block, right, cuts):
            self._fail(block, "the disk does not keep what is written there: replace it")
            return False
        wrong = _differing_bytes(now.on_disk[0], right)
        figures.blocks_repaired += 1
        figures.bytes_repaired += wrong
        if block.start not in figures.damaged:
            self._count_bad()
        text = "the block at %d of the log (%s) was damaged, and is right again: %s; wrong bytes: %d; the bad block: %s"
        logger.warning(text, block.start, segment.path, verdict.why, wrong, kept)
        await self._tell(block)
        return True

    async def _make_file_anew(self, segment: Segment, block: Block, right: bytes, cuts: int) -> bool:
        log = self._store.log
        async with self._lock:
            if log.cuts != cuts or log.chain.at(segment.base) is not segment or segment.end > log.flushed:
                return False  # it was cut or removed, or is still written to
            is_made = await trio.to_thread.run_sync(self._blocks.make_file_anew, segment, block, right)
            segment.let_go()
        if is_made:
            self.figures.files_made_anew += 1
            logger.warning("%s was made anew: its disk did not keep the block at %d", segment.path, block.start)
        return is_made

    async def _keep(self, block: Block, now: Reading, others: Sequence[Copy]) -> None:
        mine = [("disk", now.on_disk[0])]
        if now.in_memory not in now.on_disk:
            mine.append(("memory", now.in_memory))
        for holder, data in (*mine, *((copy.holder, copy.of(block)) for copy in others)):
            await trio.to_thread.run_sync(self._blocks.keep, block, holder, data)

    def _fail(self, block: Block, why: str) -> None:
        if block.start not in self.figures.damaged:
            self.figures.damaged.add(block.start)
            logger.error("the block at %d of the log is damaged, and is not repaired: %s", block.start, why)
            self._count_bad()

    def _miss_file(self, block: Block) -> None:
        """As `_fail`, for a block whose file is missing: logged and counted once for all blocks of the file."""
        path, missing = self._path_of(block), self.figures.of_missing_files
        self.figures.damaged.add(block.start)
        is_known = path in missing
        missing.setdefault(path, set()).add(block.start)
        if not is_known:
            logger.error("%s is missing: put it back from another replica, or a backup, before a restart", path)
            self._count_bad()

    def _path_of(self, block: Block) -> str:
        segment = self._store.log.chain.at(block.start)
        return "" if segment is None else segment.path

    def _count_bad(self) -> None:
        was_failing = self.figures.is_disk_failing
        self.figures.bad_in_cycle += 1
        if self.figures.is_disk_failing and not was_failing:
            text = (
                "more than %d blocks of the log were damaged: replace the disk. Controllers do not elect this broker,"
                " and in a DLedger group it hands the leadership over"
            )
            logger.error(text, MAX_REPAIRED_A_CYCLE)

    async def _tell(self, block: Block) -> None:
        """The block is right again: its messages get the entries that they lack, and whoever waits for it is told."""
        await give_entries(self._store, self._blocks, block)
        for tell in self.on_repaired:
            tell([block])


def _differing_bytes(one: bytes, other: bytes) -> int:
    difference = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    return len(one) - difference.to_bytes(len(one), "big").count(0)
