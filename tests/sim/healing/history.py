"""Random histories of a DLedger group whose disks lie: bits flip, sectors are zeroed, writes go astray, reads change.

To the histories of tests/sim/dledger (elections, cuts, crashes, disks that lose power) come damage on a minority, the
sealing of blocks, attestation between members, scrubs, and reads that compare. Sums, sealing, judgement and repair are
the product's. Each of these holds after each event:
what a reader gets is what was sent, or a refusal; an attested sum is the sum of the committed bytes; a repair changes
no byte that was right.
In the end, after scrubs without new damage: all disks and all memories have the committed bytes.
"""

from functools import cache
from typing import Any, ClassVar
from zlib import crc32

import trio
from trio.testing import MockClock

from skylark.broker.healing.healer import LogHealer
from skylark.broker.healing.judgement import Copy, EntrySum, sound_records
from skylark.broker.healing.rewriting import LogBlocks
from skylark.broker.replication.dledger.group_store import LostDisk
from skylark.broker.store.sums.block_sums import Block, BlockSum
from skylark.broker.tasks.block_sealing import BlockSealing
from skylark.mqcommon.errors import StoreCorrupt
from tests.broker.store.support import SMALL
from tests.sim.dledger.history import TOPIC, History, Member
from tests.support.bad_medium import SECTOR_BYTES
from tests.support.memory_files import MemoryFiles

LOG = "/store/commitlog"
SEGMENT_BYTES = SMALL.commitlog_segment_bytes
# Rounds of scrub and attestation at the end; a repair may need the repair of another member's block first.
LAST_ROUNDS = 4
# After how many ticks of its own a member has begun an election; and what it puts before anything goes wrong.
ELECTION_TICKS, FIRST_PUTS = 10, 6


class OtherLogs:
    """The logs of the other members, for a healer: as `PeerLogs`, without sockets."""

    #: Whether a member gives only bytes that match its own sum; for mutants.
    is_careful: ClassVar[bool] = True

    def __init__(self, history: "HealingHistory", own: "Patient") -> None:
        self._history = history
        self._own = own

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()

    async def copies(self, block: Block, own: Copy, own_sum: BlockSum | None) -> list[Copy]:
        """What members that are heard have there; none of them gives a block that does not match its own sum."""
        found = []
        for other in self._history.others_heard(self._own):
            log = other.store.log
            end = min(own.start + len(own.data), other.safe_end)
            segment = log.chain.at(own.start)
            if segment is None or end < block.end:
                continue
            try:
                data = segment.file.pread(own.start - segment.base, end - own.start)
            except OSError:
                continue
            is_whole = log.sums.block_at(block.start) == block
            copy = Copy(other.name, own.start, data, log.sums.sum_of(block) if is_whole else None)
            if not self.is_careful or not is_whole or log.sums.is_right(block, copy.of(block)):
                found.append(copy)
        return found


class Patient(Member):
    """A member that seals its blocks, compares them and has them healed."""

    _history: "HealingHistory"

    async def start(self) -> None:
        await super().start()
        history, log = self._history, self.store.log
        self.sealing = BlockSealing(log, lambda: self.safe_end)
        self.blocks = LogBlocks(self.fs, "/store")
        others: Any = OtherLogs(history, self)

        def entries_of(block: Block) -> list[EntrySum]:
            found = self.disk.index.in_log(block.start, block.end) if history.has_entries else ()
            return [EntrySum(each.start, each.size, each.crc) for each in found]

        #: Blocks of entries that could not be sent to another member, as they are damaged here.
        self.unsent: set[Block] = set()
        self.disk.on_damaged = self._cannot_send
        self.healer = LogHealer(
            self.store, self.blocks, others, self.flusher.repairing, self.flusher.one_at_a_time, entries_of
        )
        self.life = trio.CancelScope()
        await history.nursery.start(self._live)

    async def _live(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self.life:
            await self.healer.run(task_status=task_status)

    def _cannot_send(self, index: int) -> None:
        entry = self.disk.index.entry(index)
        self.unsent.update(self.store.log.sums.blocks(entry.start, entry.start + entry.size))

    async def mend_unsent(self) -> None:
        """Have the blocks healed that keep other members waiting, as the product does."""
        while self.unsent:
            block = self.unsent.pop()
            if block.end <= self.safe_end:
                await self.suspect(block)

    @property
    def safe_end(self) -> int:
        """Up to where the log is on disk and committed."""
        return min(self.store.log.flushed, self.confirmed)

    def in_memory(self, block: Block) -> bytes:
        segment = self.store.log.chain.at(block.start)
        return b"" if segment is None else segment.file.pread(block.start - segment.base, block.size)

    def is_right(self, block: Block) -> bool:
        """Whether memory and two reads of the medium have the bytes of the block's sum."""
        segment = self.store.log.chain.at(block.start)
        assert segment is not None
        try:
            reads = [self.fs.read_direct(segment.path, block.start - segment.base, block.size) for _ in range(2)]
        except OSError:
            return False
        return all(self.store.log.sums.is_right(block, data) for data in (self.in_memory(block), *reads))

    def close(self) -> None:
        """All of it is memory."""

    # --- events

    async def seal(self) -> None:
        await self.build()
        await self.flush()
        await self.sealing.seal()

    async def attest(self) -> None:
        """Compare sums with another member's."""
        others = self._history.others_heard(self)
        if not others:
            return
        other = self._history.random.choice(others)
        ours, theirs = self.store.log.sums, other.store.log.sums
        for block in list(ours.newest()):
            own, found = ours.sum_of(block), theirs.sum_of(block)
            if own is None or found is None:
                continue
            if own.crc == found.crc:
                ours.attest(block, found.crc)
                theirs.attest(block, own.crc)
            else:
                await self.suspect(block)
                await other.suspect(block)

    async def suspect(self, block: Block) -> None:
        """Compare a block, which may be right here, with other members."""
        self._history.note_masters()
        before = self.in_memory(block)
        self.healer.suspect([block])
        for repair in list(self.healer._repairs.values()):
            await repair.done.wait()
        self.check_repair(block, before)

    async def suspect_any(self) -> None:
        """As `suspect`, of a block that is damaged at some member, perhaps at another one."""
        damaged = [each for each in self._history.damaged if each.end <= self.safe_end]
        if damaged:
            await self.suspect(self._history.random.choice(damaged))

    async def scrub(self) -> None:
        """Compare all blocks with the medium and with memory; a block of sound records without a sum gets one."""
        sums, size = self.store.log.sums, self.store.log.chain.segment_bytes
        for block in list(sums.blocks(0, self.safe_end)):
            if block.end > min(self.sealing.sealed_to, self.safe_end):
                continue
            if sums.sum_of(block) is not None:
                if not self.is_right(block):
                    await self.heal(block)
                continue
            data = self.in_memory(block)
            if sum(len(each.data) for each in sound_records(block.start, data, size)) == block.size:
                sums.seal(block, crc32(data))
            else:
                await self.heal(block)

    async def read(self) -> None:
        """Read an acknowledged message as a cold read does: no byte of a block before the block is compared."""
        history = self._history
        if not history.acked:
            return
        queue_id, offset, body = history.random.choice(history.acked)
        queue = self.store.queues.find(TOPIC, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.next_offset:
            return
        physical, size, _ = queue.entry(offset)
        sums = self.store.log.sums
        blocks = list(sums.blocks(physical, physical + size))
        if not all(history.is_vouched_for(self, block) for block in blocks):
            return
        for block in blocks:
            if not sums.is_right(block, self.in_memory(block)) and not await self.heal(block):
                history.refused += 1
                return
        data = b"".join(self.in_memory(block) for block in blocks)
        found = data[physical - blocks[0].start :][:size]
        assert found == history.truth[physical : physical + size], f"{self.name} serves a wrong message"
        assert body in found

    async def heal(self, block: Block) -> bool:
        """Heal a block, and check that no right byte was changed."""
        history = self._history
        history.note_masters()
        before = self.in_memory(block)
        is_healed = await self.healer.heal([block])
        self.check_repair(block, before)
        truth = history.truth[block.start : block.end]
        if is_healed and history.is_vouched_for(self, block) and len(truth) == block.size:
            assert self.in_memory(block) == truth, f"{self.name} takes {block} for healed"
            history.healed += 1
        return is_healed

    def check_repair(self, block: Block, before: bytes) -> None:
        """No byte that was right ``before`` is another now."""
        truth = self._history.truth[block.start : block.end]
        now = self.in_memory(block)
        if now[: len(truth)] == truth[: len(now)]:
            return
        spoilt = [at for at, (b, a, t) in enumerate(zip(before, now, truth, strict=False)) if b == t != a]
        assert spoilt == [], f"{self.name}: a repair of {block} has changed {len(spoilt)} right bytes"


class HealingHistory(History):
    """One seed."""

    member_class = Patient
    #: The members that lead now, of the history that runs; for mutants.
    masters: ClassVar[set[str]] = set()
    sizes = (3, 3, 3, 3, 3, 3, 5)
    steps = 65
    settle_steps = 1
    alive: dict[str, Patient]  # type: ignore[assignment]

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        #: The committed bytes of the log, from its start on.
        self.truth = bytearray()
        #: By block: the members that were damaged there, at any time.
        self.damaged: dict[Block, set[str]] = {}
        self.damages = self.healed = self.refused = self.restored = 0
        # Whether the entries' CRCs help, as in a DLedger group; with Controllers there are none.
        self.has_entries = self.random.random() < 0.5
        # By member: up to where it had the log on disk and committed when it was alive.
        self._safe_ends = dict.fromkeys(self.disks, 0)

    def run(self) -> None:
        begun = beginning(len(self.disks))
        self.disks = {name: disk.killed() for name, disk in begun.disks.items()}
        self.truth, self.acked, self._bodies = begun.truth.copy(), begun.acked.copy(), begun._bodies
        self._committed, self._leaders = begun._committed.copy(), begun._leaders.copy()
        self._safe_ends = begun._safe_ends.copy()
        self._simulate()

    def _simulate(self) -> None:
        try:
            # Nothing waits for a thread here, so the clock may jump.
            trio.run(self._run, clock=MockClock(autojump_threshold=0))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    def note_masters(self) -> None:
        HealingHistory.masters = {name for name, member in self.alive.items() if member.leads}

    def is_vouched_for(self, member: Patient, block: Block) -> bool:
        """Whether the block has a sum that is right.

        A block that was damaged before it was sealed may have a wrong one, until another member is asked.
        """
        own = member.store.log.sums.sum_of(block)
        return own is not None and (own.is_attested or member.name not in self.damaged.get(block, ()))

    def others_heard(self, member: Patient) -> list[Patient]:
        """The other members that answer its requests."""
        return [
            other
            for name, other in self.alive.items()
            if other is not member and not {(member.name, name), (name, member.name)} & self._cut
        ]

    async def _run(self) -> None:
        async with trio.open_nursery() as self.nursery:
            for name in self.disks:
                await self._start(name)
            await self._elect()
            await super()._run()
            self.nursery.cancel_scope.cancel()

    async def _elect(self) -> Member:
        """Let one member have its election timeout; it leads, unless somebody dies meanwhile."""
        first = next(iter(self.alive.values()))
        for _ in range(ELECTION_TICKS):
            if not first.leads:
                await first.tick()
                await self._drain()
        return first

    def _ended(self, member: Member, left: MemoryFiles) -> None:
        super()._ended(member, left)
        assert isinstance(member, Patient)
        member.life.cancel()

    async def _start(self, name: str) -> None:
        before = self.disks[name].killed()
        try:
            await super()._start(name)
        except (StoreCorrupt, LostDisk):
            # The start met damage. An administrator has the log copied from another member.
            self.disks[name] = disk = before
            committed = self.truth[: self._safe_ends[name]]
            for base in range(0, len(committed), SEGMENT_BYTES):
                path = f"{LOG}/{base:020d}"
                right = committed[base : base + SEGMENT_BYTES]
                old = disk.read(path) if disk.exists(path) else bytes(SEGMENT_BYTES)
                disk.overwrite(path, bytes(right) + old[len(right) :])
            self.restored += 1
            await super()._start(name)

    def next_body(self) -> bytes:
        # Longer ones, so that histories fill more blocks.
        return super().next_body() + bytes(self.random.choice((0, 300, 900)))

    async def _step(self) -> None:
        random = self.random
        await super()._step()
        if random.random() < 0.02:
            await self._calm(random.choice((1, 2)))
        for member in list(self.alive.values()):
            self._learn(member)
        if random.random() < 0.12:
            self._damage()
        if self.alive and random.random() < 0.25:
            member = random.choice(list(self.alive.values()))
            what = random.choice(
                (member.seal, member.attest, member.scrub, member.suspect_any, member.read, member.read)
            )
            await self._event(member, what)
            self._check_sums()

    async def _quiet_step(self, number: int) -> None:
        await super()._quiet_step(number)
        for member in list(self.alive.values()):
            await member.mend_unsent()

    async def _calm(self, steps: int) -> None:
        """Without such times hardly a block would be full and committed before the end."""
        for _ in range(steps):
            await self._quiet_step(0)
        for member in list(self.alive.values()):
            await member.seal()
            self._learn(member)

    def _learn(self, member: Patient) -> None:
        """Keep the bytes that were committed just now, before anything can damage them."""
        self._safe_ends[member.name] = max(self._safe_ends[member.name], member.safe_end)
        log = member.store.log
        while len(self.truth) < min(member.confirmed, log.end):
            segment = log.chain.at(len(self.truth))
            assert segment is not None
            end = min(segment.end, member.confirmed, log.end)
            self.truth += segment.file.pread(len(self.truth) - segment.base, end - len(self.truth))

    # --- damage

    def _damage(self) -> None:
        """Damage a block that all members have, of a minority."""
        random = self.random
        name = random.choice(list(self.disks))
        disk = self.alive[name].fs if name in self.alive else self.disks[name]
        block = self._old_block(name)
        if block is None:
            return
        path = f"{LOG}/{block.start // block.size * block.size:020d}"
        if not disk.exists(path):
            return
        self.damaged.setdefault(block, set()).add(name)
        at = random.randrange(block.size - SECTOR_BYTES)
        kind = random.choice((self._flip, self._zero, self._misdirect, self._unstable, self._unreadable))
        kind(disk, path, at)
        self.damages += 1
        self._note(f"{name} {kind.__name__} in block {block.start}")

    def _old_block(self, name: str) -> Block | None:
        """A block whose bytes are committed and on disk everywhere; not damaged where that would be no minority."""
        end = min(self._safe_ends.values())
        if not end or not self.alive:
            return None
        sums = next(iter(self.alive.values())).store.log.sums
        blocks = [block for block in sums.blocks(0, end) if block.end <= end]
        most = (len(self.disks) - 1) // 2
        fit = [block for block in blocks if len(self.damaged.get(block, set()) | {name}) <= most]
        return self.random.choice(fit) if fit else None

    def _sides(self) -> dict[str, bool]:
        return self.random.choice(({"in_memory": True}, {"in_memory": False}, {"in_memory": True, "on_disk": False}))

    def _flip(self, disk: MemoryFiles, path: str, at: int) -> None:
        for _ in range(self.random.choice((1, 1, 8))):
            place = at + self.random.randrange(SECTOR_BYTES)
            byte = disk.read_part(path, place, 1)[0] ^ (1 << self.random.randrange(8))
            disk.damage(path, place, bytes([byte]), **self._sides())

    def _zero(self, disk: MemoryFiles, path: str, at: int) -> None:
        disk.damage(path, at // SECTOR_BYTES * SECTOR_BYTES, bytes(SECTOR_BYTES), **self._sides())

    def _misdirect(self, disk: MemoryFiles, path: str, at: int) -> None:
        """Bytes of another place of the file, as a write that went astray leaves them."""
        source = self.random.randrange(8) * SECTOR_BYTES
        disk.damage(
            path, at // SECTOR_BYTES * SECTOR_BYTES, disk.read_part(path, source, SECTOR_BYTES), **self._sides()
        )

    def _unstable(self, disk: MemoryFiles, path: str, at: int) -> None:
        disk.make_unstable(path, at, 20)

    def _unreadable(self, disk: MemoryFiles, path: str, at: int) -> None:
        disk.make_unreadable(path, at, 1)

    # --- what must hold

    def _check_sums(self) -> None:
        for member in self.alive.values():
            sums = member.store.log.sums
            for block in sums.newest():
                own = sums.sum_of(block)
                if own is not None and own.is_attested and block.end <= len(self.truth):
                    right = crc32(self.truth[block.start : block.end])
                    assert own.crc == right, f"{member.name} has attested a wrong sum of {block}"

    async def _check_end(self) -> None:
        members = list(self.alive.values())
        for _ in range(LAST_ROUNDS):
            for member in members:
                await member.build()
                await member.flush()
                self._learn(member)
                await member.seal()
                await member.attest()
                await member.scrub()
            if not any(self._left_damaged(member) for member in members):
                break
        self._check_sums()
        for member in members:
            assert self._left_damaged(member) == [], f"{member.name} has left blocks damaged"
        await super()._check_end()

    def _left_damaged(self, member: Patient) -> list[Block]:
        """The blocks that do not match their sums, or were sealed when they were damaged and nobody has noticed."""
        return [
            block
            for block in member.store.log.sums.newest()
            if not member.is_right(block)
            or (self.damaged.get(block) and member.in_memory(block) != self.truth[block.start : block.end])
        ]


class Beginning(HealingHistory):
    """What all histories of groups of ``size`` begin with: some full blocks, before anything goes wrong."""

    def __init__(self, size: int) -> None:
        self.sizes = (size,)
        super().__init__(0)
        self._is_peace, self._loss = True, 0.0

    def run(self) -> None:
        self._simulate()

    async def _run(self) -> None:
        async with trio.open_nursery() as self.nursery:
            for name in self.disks:
                await self._start(name)
            leader = await self._elect()
            for _ in range(FIRST_PUTS):
                await leader.put()
                await self._calm(1)
            for member in list(self.alive.values()):
                Member.close(member)
                self._ended(member, member.fs)
            self.nursery.cancel_scope.cancel()


@cache
def beginning(size: int) -> Beginning:
    """The beginning of each history of a group of ``size``; it takes a third of the time of a history."""
    begun = Beginning(size)
    begun.run()
    return begun
