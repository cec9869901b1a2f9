"""Decides which commit log files to remove and whether to refuse messages, as RocketMQ's CleanCommitLogService does.

Files go oldest first, at most one batch per round, and never the last one (the caller leaves it out):
- files whose youngest message is older than fileReservedTime, in the hours of deleteWhen, or when the disk is fuller
  than diskMaxUsedSpaceRatio, or when an admin asks;
- any files, when the disk is fuller than diskSpaceCleanForciblyRatio and cleanFileForciblyEnable is on, but only as
  many as bring the disk back to that ratio. (RocketMQ removes a whole batch, up to 10 GiB more than needed.)
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
    """Remove ``expired`` files, and then ``forced`` more; ``refuse``: take no messages.

    ``too_full``: files go at any hour. ``used`` is the share of the disk in use, for log lines.
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
) -> CleanDecision:
    """What to do now.

    ``youngest_ms``: when the youngest message of each file was stored, oldest file first; None if unknown. It is read
    only as far as needed. ``files``: the most that may go. ``hour``: the hour of the day. ``asked``: an administrator
    wants expired files removed at any hour.
    """
    refuse = disk.is_fuller_than(rules.refuse_ratio)
    too_full = disk.is_fuller_than(min(rules.clean_ratio, rules.force_ratio, rules.refuse_ratio))
    if not (asked or too_full or hour in rules.hours):
        return CleanDecision(used=disk.used / disk.capacity)
    # Remove the oldest first, and no file after a file that stays: the log has no gaps.
    files = min(files, rules.batch_max)
    expired = 0
    for youngest in youngest_ms:
        if expired == files or youngest is None or now_ms - youngest < rules.reserved_ms:
            break
        expired += 1
    forced = 0
    if rules.force and disk.is_fuller_than(rules.force_ratio):
        forced = max(min(-(-disk.excess(rules.force_ratio) // segment_bytes), files) - expired, 0)
    return CleanDecision(expired, forced, refuse, too_full, disk.used / disk.capacity)
