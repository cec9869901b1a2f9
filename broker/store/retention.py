"""Decides which commit log files to remove and whether to refuse messages, as RocketMQ's CleanCommitLogService does.

Files go oldest first, at most one batch per round, and never the last one (the caller leaves it out):
- files whose youngest message is older than fileReservedTime, in the hours of deleteWhen, or when the disk is fuller
  than diskMaxUsedSpaceRatio, or when an admin asks;
- any files, when the disk is fuller than diskSpaceCleanForciblyRatio and cleanFileForciblyEnable is on, but only as
  many as bring the disk back to that ratio. (RocketMQ removes a whole batch, up to 10 GiB more than needed.)
- at any hour the files that are beyond tierLocalBytes of log. With tierPath only files that are in the bucket may go.
Messages are refused while the disk is fuller than diskSpaceWarningLevelRatio.
Neighbours: removal.py (removes the files), tasks/clean.py (says when).
"""

from collections.abc import Iterable
from dataclasses import field

from skylark.mqcommon.lazy_dataclass import lazy_dataclass

HOUR_MS = 3_600_000


@lazy_dataclass(frozen=True)
class RetentionRules:
    """The options that matter here; ratios are percent of the disk."""

    reserved_ms: int
    hours: frozenset[int]
    clean_ratio: int
    force_ratio: int
    refuse_ratio: int
    force: bool
    batch_max: int
    #: How much of the log stays on this disk; 0: no limit.
    local_bytes: int = 0


@lazy_dataclass(frozen=True)
class Disk:
    """Bytes of the disk in use, and its capacity (at least 1)."""

    used: int
    capacity: int

    def is_fuller_than(self, percent: int) -> bool:
        return self.used * 100 > percent * self.capacity

    def excess(self, percent: int) -> int:
        """Bytes that must be freed to get down to ``percent``."""
        return self.used - percent * self.capacity // 100


@lazy_dataclass(frozen=True)
class CleanDecision:
    """Remove ``expired`` files, then ``forced`` more, then ``surplus`` ones; ``refuse``: take no messages.

    ``too_full``: files go at any hour. ``used`` is the share of the disk in use, for log lines.
    """

    expired: int = 0
    forced: int = 0
    surplus: int = 0
    refuse: bool = False
    too_full: bool = False
    used: float = field(default=0.0, compare=False)

    @property
    def files(self) -> int:
        return self.expired + self.forced + self.surplus

    def why(self, number: int) -> str:
        """Why file ``number`` goes, the oldest being 0."""
        if number < self.expired:
            return "its messages are expired"
        if number < self.expired + self.forced:
            return f"{self.used:.1%} of the disk in use"
        return "it is in the bucket, and beyond tierLocalBytes"


def delete_hours(delete_when: str) -> frozenset[int]:
    """The hours in a text like ``"04;16"``; ValueError if there are none, or others than 0 to 23."""
    hours = [int(hour) for hour in delete_when.split(";") if hour.strip()]
    if not hours or not all(0 <= hour < 24 for hour in hours):
        raise ValueError(f"{delete_when!r} is not a list of hours (0 to 23) with semicolons between them")
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
    surplus: int = 0,
) -> CleanDecision:
    """What to do now.

    ``youngest_ms``: when the youngest message of each file was stored, oldest file first; None if unknown. It is read
    only as far as needed. ``files``: the most that may go. ``surplus``: how many are beyond ``rules.local_bytes``.
    ``hour``: the hour of the day. ``asked``: an administrator wants expired files removed at any hour.
    """
    refuse = disk.is_fuller_than(rules.refuse_ratio)
    too_full = disk.is_fuller_than(min(rules.clean_ratio, rules.force_ratio, rules.refuse_ratio))
    # Remove the oldest first, and no file after a file that stays: the log has no gaps.
    files = min(files, rules.batch_max)
    expired = forced = 0
    if asked or too_full or hour in rules.hours:
        for youngest in youngest_ms:
            if expired == files or youngest is None or now_ms - youngest < rules.reserved_ms:
                break
            expired += 1
    if rules.force and disk.is_fuller_than(rules.force_ratio):
        forced = max(min(-(-disk.excess(rules.force_ratio) // segment_bytes), files) - expired, 0)
    surplus = max(min(surplus, files) - expired - forced, 0)
    return CleanDecision(expired, forced, surplus, refuse, too_full, disk.used / disk.capacity)
