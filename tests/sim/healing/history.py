"""Random histories of a DLedger group whose disks lie: bits flip, sectors are zeroed, writes go astray, reads change.

To the histories of tests/sim/dledger (elections, cuts, crashes, disks that lose power) come damage on a minority, the
sealing of blocks, attestation between members, scrubs, and reads that compare. Sums, sealing, judgement and repair are
the product's. Each of these holds after each event:
what a reader gets is what was sent, or a refusal; an attested sum is the sum of the committed bytes; a repair changes
no byte that was right.
In the end, after scrubs without new damage: all disks and all memories have the committed bytes.
"""

from collections.abc import Sequence
from random import Random
from zlib import crc32

import trio

from skylark.broker.healing.judgement import Copy
from skylark.broker.store.sums.block_sums import Block, BlockSum
from skylark.broker.tasks.block_sealing import BlockSealing
from skylark.mqcommon.errors import SkylarkError
from tests.sim.dledger.history import History, Member
from tests.sim.healing.medic import Medic
from tests.support.bad_medium import SECTOR_BYTES
from tests.support.memory_files import MemoryFiles

LOG = "/store/commitlog"
# Rounds of scrub and attestation at the end; a repair may need the repair of another member's block first.
LAST_ROUNDS = 4


class Patient(Member):
    """A member that seals its blocks, compares them and has them healed."""

    _history: "HealingHistory"

    async def start(self) -> None:
        await super().start()
        log = self.store.log
        self.sealing = BlockSealing(log, lambda: self.safe_end)
        self.medic = Medic(log, self.fs, self._copies_of_others)

    async def seal(self) -> None:
        await self.build()
        await self.flush()
        await self.sealing.seal()

    async def attest(self) -> None:
        """Compare sums with another member's."""
        history = self._history
        others = [each for each in history.alive.values() if each is not self and history.hear(self, each)]
        if not others:
            return
        other = history.random.choice(others)
        ours, theirs = self.store.log.sums, other.store.log.sums
        for block in list(ours.newest()):
            own, found = ours.sum_of(block), theirs.sum_of(block)
            if own is None or found is None:
                continue
            if own.crc == found.crc:
                ours.attest(block, found.crc)
                theirs.attest(block, own.crc)
            else:
                await self.heal(block)
                await other.heal(block)

    @property
    def safe_end(self) -> int:
        """Up to where the log is on disk and committed."""
        return min(self.store.log.flushed, self.confirmed)

    async def scrub(self) -> None:
        """Compare all blocks with the medium and with memory; a block without a sum gets one if its records are sound."""
        sums = self.store.log.sums
        for block in list(sums.blocks(0, self.safe_end)):
            if sums.sum_of(block) is None and block.end <= min(self.sealing.sealed_to, self.safe_end):
                if self.medic.has_sound_records(block):
                    sums.seal(block, crc32(self.medic.in_memory(block)))
                else:
                    await self.heal(block)
            elif not self.medic.is_right(block):
                await self.heal(block)

    async def read(self) -> None:
        """Read an acknowledged message, as a cold read does: no byte of a block before it is compared."""
        history = self._history
        if not history.acked:
            return
        queue_id, offset, body = history.random.choice(history.acked)
        queue = self.store.queues.find("topic", queue_id)
        if queue is None or not queue.min_offset <= offset < queue.next_offset:
            return
        physical, size, _ = queue.entry(offset)
        log = self.store.log
        blocks = list(log.sums.blocks(physical, physical + size))
        if any(log.sums.sum_of(block) is None for block in blocks):
            return
        for block in blocks:
            if not self.medic.is_right_in_memory(block) and not await self.heal(block):
                history.refused += 1
                return
        found = b"".join(self.medic.in_memory(block) for block in blocks)
        at = physical - blocks[0].start
        assert found[at : at + size] == history.truth[physical : physical + size], f"{self.name} serves a wrong message"
        assert body in found[at : at + size]

    async def heal(self, block: Block) -> bool:
        """Heal a block, and check that no right byte was changed."""
        history = self._history
        before = self.medic.in_memory(block)
        is_healed = await self.medic.heal(block)
        after = self.medic.in_memory(block)
        truth = history.truth[block.start : block.end]
        spoilt = [
            at for at, (b, a, t) in enumerate(zip(before, after, truth, strict=False), block.start) if b == t != a
        ]
        assert spoilt == [], f"{self.name}: a repair of {block} has changed {len(spoilt)} right bytes"
        if is_healed and len(truth) == block.size:
            assert after == truth, f"{self.name} takes {block} for healed"
            history.healed += 1
        return is_healed

    async def _copies_of_others(self, block: Block) -> Sequence[Copy]:
        """The block as members that are heard have it; none of them gives bytes that do not match its own sum."""
        copies = []
        for other in self._history.alive.values():
            if other is self or not self._history.hear(self, other) or other.confirmed < block.end:
                continue
            sums = other.store.log.sums
            data = other.medic.in_memory(block)
            if len(data) == block.size and sums.is_right(block, data):
                own: BlockSum | None = sums.sum_of(block)
                copies.append(Copy(other.name, block.start, data, own))
        return copies


class HealingHistory(History):
    """One seed."""

    member_class = Patient
    sizes = (3, 3, 5)
    alive: dict[str, Patient]  # type: ignore[assignment]

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        #: The committed bytes of the log, from its start on.
        self.truth = bytearray()
        #: By block: the members that were damaged there, at any time.
        self._damaged: dict[Block, set[str]] = {}
        self.damages = self.healed = self.refused = 0
        # By member: up to where it had the log on disk and committed when it was alive.
        self._safe_ends = dict.fromkeys(self.disks, 0)

    def hear(self, one: Member, other: Member) -> bool:
        """Whether requests of one member reach the other one."""
        return not {(one.name, other.name), (other.name, one.name)} & self._cut

    def next_body(self) -> bytes:
        # Longer ones, so that histories fill more blocks.
        return super().next_body() + bytes(self.random.choice((0, 300, 900)))

    async def _step(self) -> None:
        await super()._step()
        for member in list(self.alive.values()):
            self._learn(member)
            self._safe_ends[member.name] = member.safe_end
        random = self.random
        if random.random() < 0.02:
            self._damage()
        if self.alive and random.random() < 0.12:
            member = random.choice(list(self.alive.values()))
            await self._event(
                member, random.choice((member.seal, member.attest, member.scrub, member.read, member.read))
            )
        self._check_sums()

    def _learn(self, member: Patient) -> None:
        """Keep the bytes that were committed just now, before anything can damage them."""
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
        self._damaged.setdefault(block, set()).add(name)
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
        fit = [block for block in blocks if len(self._damaged.get(block, set()) | {name}) <= most]
        return self.random.choice(fit) if fit else None

    def _sides(self) -> dict[str, bool]:
        return self.random.choice(
            ({"in_memory": True}, {"in_memory": False}, {"in_memory": True, "on_disk": False})
        )

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
        self._check_sums()
        for member in members:
            for block in member.store.log.sums.newest():
                assert member.medic.is_right(block), f"{member.name} has left {block} damaged"
                if self._damaged.get(block):
                    assert member.medic.in_memory(block) == self.truth[block.start : block.end]
        await super()._check_end()
