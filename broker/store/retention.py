"""Which commit log files go, and whether messages are taken: decisions only, as RocketMQ's CleanCommitLogService.

Files go oldest first, at most a batch of them a round, and never the last one (the caller leaves it out):
- in the hours of deleteWhen, when the disk is fuller than diskMaxUsedSpaceRatio, or when asked: those whose youngest
  message is older than fileReservedTime;
- when the disk is fuller than diskSpaceCleanForciblyRatio and cleanFileForciblyEnable is on: any, but only as many as
  bring it back there. (RocketMQ takes a whole batch, and so throws away up to 10 GiB more than it has to.)
Messages are refused while the disk is fuller than diskSpaceWarningLevelRatio.
Neighbours: removal.py does it, tasks/clean.py says when.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

HOUR_MS = 3_600_000


@dataclass(frozen=True)
class RetentionRules:
    """The options; ratios are percent of the disk."""

    reserved_ms: int
    hours: frozenset[int]
    clean_ratio: int
    force_ratio: int
    refuse_ratio: int
    force: bool
    batch_max: int


@dataclass(frozen=True)
class Disk:
    """Bytes of the disk in use, and all that could be (at least 1)."""

    used: int
    room: int

    def is_fuller_than(self, percent: int) -> bool:
        return self.used * 100 > percent * self.room

    def excess(self, percent: int) -> int:
        """Bytes that must go so that it is not."""
        return self.used - percent * self.room // 100


@dataclass(frozen=True)
class Decision:
    """``expired`` files go, and then ``forced`` more; ``refuse``: no messages are taken.

    ``too_full``: files go at any hour. ``used`` is the share of the disk in use, for those who tell.
    """

    expired: int = 0
    forced: int = 0
    refuse: bool = False
    too_full: bool = False
    used: float = field(default=0.0, compare=False)

    @property
    def files(self) -> int:
        return self.expired + self.forced


def delete_hours(delete_when: str) -> frozenset[int]:
    """The hours of ``"04;16"``; ValueError when it has others than 0 to 23, or none."""
    hours = [int(hour) for hour in delete_when.split(";") if hour.strip()]
    if not hours or not all(0 <= hour < 24 for hour in hours):
        raise ValueError(f"{delete_when!r} names no hours of a day")
    return frozenset(hours)


def decide(
    youngest_ms: Iterable[int | None],
    files: int,
    segment_bytes: int,
    disk: Disk,
    rules: RetentionRules,
    now_ms: int,
    hour: int,
    *,
    asked: bool = False,
) -> Decision:
    """What to do now.

    ``youngest_ms``: when the youngest message of each file was stored, oldest file first, None when that is not
    known; looked at only as far as needed. ``files``: how many may go at all.
    """
    refuse = disk.is_fuller_than(rules.refuse_ratio)
    too_full = disk.is_fuller_than(min(rules.clean_ratio, rules.force_ratio, rules.refuse_ratio))
    if not (asked or too_full or hour in rules.hours):
        return Decision(used=disk.used / disk.room)
    files = min(files, rules.batch_max)
    expired = 0
    for youngest in youngest_ms:
        if expired == files or youngest is None or now_ms - youngest < rules.reserved_ms:
            break
        expired += 1
    forced = 0
    if rules.force and disk.is_fuller_than(rules.force_ratio):
        forced = max(min(-(-disk.excess(rules.force_ratio) // segment_bytes), files) - expired, 0)
    return Decision(expired, forced, refuse, too_full, disk.used / disk.room)
