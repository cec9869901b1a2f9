"""Whose bytes of a damaged block are right. Pure.

In this order; a copy is never right because of the role or the place of its holder:
 1. the bytes that match an attested sum. A sum that only this replica has sealed decides, too, when another replica
    has the bytes of that sum. Where one decides, nothing else does
 2. in a DLedger group, the bytes whose entries match the CRCs of the group's entries
 3. record by record: the one version that is sound, where all others are not
 4. the bytes of more than half of all replicas that were asked, of two at least
Otherwise nobody can say, and the bytes stay as they are here. Bytes are put together from several copies by 3 and 4,
since each may be damaged elsewhere.
Copies reach beyond the block, since records do. Neighbours: healer.py (asks, and acts on the verdict).
"""

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from skylark.broker.store.log.valid_record import valid_record
from skylark.broker.store.sums.block_sums import Block, BlockSum
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.message.layout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    HEAD_V4,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD,
    SIZE_MAGIC,
)

_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
# Choices that are compared with a sum: each takes 70 µs, and the CRC of a wrong one is right once in 4 billion.
MAX_CHOICES = 1_024
_BLANK = BLANK_MAGIC.to_bytes(4, "big")
_MAGIC_AT = HEAD_V4.starts["magic"]


class EntrySum(NamedTuple):
    """The bytes of an entry of a DLedger group in the log, and their CRC-32, as the entries of this member have it."""

    start: int
    size: int
    crc: int


class Copy(NamedTuple):
    """The bytes of the log from the physical offset ``start`` on, as ``holder`` has them; they cover the block.

    ``sum``: the holder's own sum of the block. ``has_vote``: the copy counts for rule 4, as the one of its replica.
    Without ``is_current`` the holder may have damaged bytes, or some that were cut from the set's log: only a sum or an
    entry proves them.
    """

    holder: str
    start: int
    data: bytes
    sum: BlockSum | None = None
    has_vote: bool = True
    is_own: bool = False
    is_current: bool = True

    def part(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` to ``end``."""
        return self.data[max(start - self.start, 0) : max(end - self.start, 0)]

    def of(self, block: Block) -> bytes:
        """The bytes of the block."""
        return self.part(block.start, block.end)


class Verdict(NamedTuple):
    """``right``: the bytes of the block, or None when nobody can say anything. ``why`` is for people.

    ``is_whole``: a sum or entries prove all bytes, or all of them are of sound records.
    ``undecided``: where nobody can say, and why; there ``right`` has the bytes of the first copy.
    ``lacks_records``: bytes that differ are of no sound record; one may be that reaches beyond the copies.
    """

    right: bytes | None
    why: str
    is_whole: bool = False
    undecided: str = ""
    lacks_records: bool = False


def judge(
    block: Block,
    own_sum: BlockSum | None,
    copies: Sequence[Copy],
    segment_bytes: int,
    entries: Sequence[EntrySum] = (),
) -> Verdict:
    """Which bytes of ``block`` are right. ``copies``: of this replica, which come first, and of others.

    ``entries``: those with bytes of the block, without gaps; none outside of a DLedger group.
    """
    known = _sum_to_match(own_sum, copies)
    others = [copy for copy in copies if not copy.is_own]
    # This replica's bytes and its own sum are one witness: the block may have been sealed when it was wrong already.
    for copy in copies if known.is_proven else others or copies:
        if large_crc32(copy.of(block)) == known.crc:
            return Verdict(copy.of(block), f"{copy.holder} matches the {known.name}", is_whole=True)
    if not known.is_proven and (of_entries := _entry_by_entry(block, copies, entries)):
        return Verdict(of_entries, f"the entries of the group match their CRCs, of {_names(copies)}", is_whole=True)
    current = [copy for copy in copies if copy.is_current]
    made, disputes = _record_by_record(block, current, segment_bytes)
    if known.crc is None:
        # Where nothing is decided, nothing may be written. A repair would also choose between disk and memory.
        is_barred = disputes and (made.right == copies[0].of(block) or _own_differ(copies, block, disputes))
        return made._replace(right=None) if is_barred else made
    # A sum proves bytes wherever they come from, also a choice where records differ.
    right = _put_together(known.crc, *_record_by_record(block, copies, segment_bytes))
    own = [copy.of(block) for copy in copies if copy.is_own]
    if right and (known.is_proven or not made.undecided or right not in own):
        return Verdict(right, f"put together, the copies match the {known.name}", is_whole=True)
    # Two others must contradict this replica's sum: equal bytes of two replicas may be damage that one has sent to the
    # other.
    agreeing = sum(copy.has_vote and copy.of(block) == made.right for copy in current if not copy.is_own)
    if not known.is_proven and not made.undecided and agreeing >= 2:
        return made._replace(is_whole=True)
    why = f"no copy matches the {known.name}, of {_names(copies)}"
    return Verdict(None, why, lacks_records=made.lacks_records)


class _SumToMatch(NamedTuple):
    """``is_proven``: two replicas had this sum when the block was sealed. ``crc`` is None when there is no sum."""

    crc: int | None
    name: str
    is_proven: bool


def _sum_to_match(own_sum: BlockSum | None, copies: Sequence[Copy]) -> _SumToMatch:
    if own_sum is not None and own_sum.is_attested:
        return _SumToMatch(own_sum.crc, "attested sum", True)
    attested = {copy.sum.crc for copy in copies if copy.is_current and copy.sum is not None and copy.sum.is_attested}
    if len(attested) == 1:
        return _SumToMatch(attested.pop(), "sum that others have attested", True)
    return _SumToMatch(None if own_sum is None else own_sum.crc, "sum sealed here", False)


def _names(copies: Sequence[Copy]) -> str:
    return ", ".join(copy.holder for copy in copies)


def _entry_by_entry(block: Block, copies: Sequence[Copy], entries: Sequence[EntrySum]) -> bytes:
    """The bytes of the block from copies that match the CRCs of the entries; nothing unless all entries are found."""
    right = bytearray()
    end = entries[0].start if entries else 0
    for start, size, crc in entries:
        if start != end:
            return b""
        end += size
        parts = (copy.part(start, start + size) for copy in copies if copy.start <= start)
        part = next((part for part in parts if len(part) == size and large_crc32(part) == crc), None)
        if part is None:
            return b""
        right += part[max(block.start - start, 0) : max(block.end - start, 0)]
    return bytes(right) if len(right) == block.size else b""


class _Sound(NamedTuple):
    """A sound record, or the filler at the end of a file."""

    start: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class _Dispute(NamedTuple):
    """Bytes ``at`` a place in a block of which nobody can say which are right."""

    at: int
    parts: tuple[bytes, ...]


def _put_together(crc: int, made: Verdict, disputes: Sequence[_Dispute]) -> bytes:
    """The bytes with the sum ``crc``, with one choice of each dispute; nothing if there are none."""
    right = bytearray(made.right or b"")
    if math.prod(len(dispute.parts) for dispute in disputes) > MAX_CHOICES:
        return b""
    for choice in itertools.product(*(dispute.parts for dispute in disputes)):
        for dispute, part in zip(disputes, choice, strict=True):
            right[dispute.at : dispute.at + len(part)] = part
        if large_crc32(right) == crc:
            return bytes(right)
    return b""


def _own_differ(copies: Sequence[Copy], block: Block, disputes: Sequence[_Dispute]) -> bool:
    """Whether disk and memory of this replica differ where nobody can say which is right: a repair would write both."""
    own = [copy.of(block) for copy in copies if copy.is_own]
    return any(len({data[dispute.at : dispute.at + len(dispute.parts[0])] for data in own}) > 1 for dispute in disputes)


def _record_by_record(block: Block, copies: Sequence[Copy], segment_bytes: int) -> tuple[Verdict, list[_Dispute]]:
    right = bytearray(copies[0].of(block))
    disputes: list[_Dispute] = []
    found = [list(sound_records(copy.start, copy.data, segment_bytes)) for copy in copies]
    reasons: list[str] = []
    undecided, lacks_records = "", False
    at = block.start
    while (at := _next_difference(block, copies, at)) < block.end:
        around = (_around(sound, at) for sound in found)
        versions = list(dict.fromkeys(each for each in around if each is not None))
        if len(versions) == 1:
            start, end = max(versions[0].start, block.start), min(versions[0].end, block.end)
            part = versions[0].data[start - versions[0].start : end - versions[0].start]
            reason = "of different records one is sound"
        else:
            # No version is sound, or several are.
            start = min((each.start for each in versions), default=at)
            end = max((each.end for each in versions), default=_end_of_difference(block, copies, at))
            start, end = max(start, block.start), min(end, block.end)
            part = _majority(copies, start, end)
            reason = "of different bytes most replicas have the same"
            if not part:
                several = f"{len(versions)} versions are sound" if versions else "none is sound"
                undecided = undecided or f"bytes differ at {at}, {several} and there is no majority"
                lacks_records = lacks_records or not versions
                parts = tuple(dict.fromkeys(copy.part(start, end) for copy in copies))
                disputes.append(_Dispute(start - block.start, parts))
                at = end
                continue
        right[start - block.start : end - block.start] = part
        if reason not in reasons:
            reasons.append(reason)
        at = end
    why = f"{'; '.join(reasons) or undecided or 'all copies are equal'}, of {_names(copies)}"
    is_whole = not undecided and _covers(block, bytes(right), copies, found)
    return Verdict(bytes(right), why, is_whole, undecided, lacks_records), disputes


def _next_difference(block: Block, copies: Sequence[Copy], at: int) -> int:
    """The first offset from ``at`` on where copies differ; the block's end if there is none."""
    step = 4096
    while at < block.end:
        end = min(at + step, block.end)
        parts = [copy.part(at, end) for copy in copies]
        if any(part != parts[0] for part in parts):
            return next(at + i for i, values in enumerate(zip(*parts, strict=True)) if len(set(values)) > 1)
        at = end
    return block.end


def _end_of_difference(block: Block, copies: Sequence[Copy], at: int) -> int:
    """Where the bytes that differ from ``at`` on end."""
    parts = [copy.part(at, block.end) for copy in copies]
    same = (at + i for i, values in enumerate(zip(*parts, strict=True)) if len(set(values)) == 1)
    return next(same, block.end)


def _majority(copies: Sequence[Copy], start: int, end: int) -> bytes:
    """The bytes that more than half of all voters have, two at least; nothing if there are none."""
    voters = [copy for copy in copies if copy.has_vote]
    if not voters:
        return b""
    part, votes = Counter(copy.part(start, end) for copy in voters).most_common(1)[0]
    return part if votes >= 2 and 2 * votes > len(voters) else b""


def _covers(block: Block, right: bytes, copies: Sequence[Copy], found: Sequence[Sequence[_Sound]]) -> bool:
    """Whether all bytes of ``right`` are of sound records."""
    at = block.start
    while at < block.end:
        ends = [
            each.end
            for copy, sound in zip(copies, found, strict=True)
            if (each := _around(sound, at)) is not None
            and copy.part(at, min(each.end, block.end))
            == right[at - block.start : min(each.end, block.end) - block.start]
        ]
        if not ends:
            return False
        at = max(ends)
    return True


def _around(sound: Sequence[_Sound], at: int) -> _Sound | None:
    """The sound record that has the byte at ``at``."""
    index = bisect_right(sound, at, key=lambda each: each.start) - 1
    return sound[index] if index >= 0 and at < sound[index].end else None


def sound_records(start: int, data: bytes, segment_bytes: int) -> Iterator[_Sound]:
    """The sound records, and the fillers of files, in ``data``, which begins at the physical offset ``start``.

    A record has its own offset in the log, so that one is found after any damage.
    """
    at = 0
    while at + BLANK_BYTES <= len(data):
        size, magic = SIZE_MAGIC.unpack_from(data, at)
        file_end = (start + at) // segment_bytes * segment_bytes + segment_bytes
        if magic == BLANK_MAGIC and start + at + size == file_end:
            # RocketMQ may leave anything after the head of a filler.
            whole = data[at : at + size]
            yield _Sound(start + at, whole if not any(whole[BLANK_BYTES:]) else whole[:BLANK_BYTES])
            at += size
        elif MIN_RECORD <= size <= len(data) - at and valid_record(data[at : at + size], start + at)[0] is not None:
            yield _Sound(start + at, data[at : at + size])
            at += size
        else:
            places = (data.find(magic_, at + 1 + _MAGIC_AT) for magic_ in (*_MAGICS, _BLANK))
            at = min((place - _MAGIC_AT for place in places if place >= 0), default=len(data))
