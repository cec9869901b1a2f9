"""Who becomes the master of a set. Pure.

Only a member of the SyncStateSet has all that was acknowledged. Another one is elected only where the operator prefers
a set that takes messages to one that keeps them (``unclean``).
"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

#: Lower values go first.
DEFAULT_PRIORITY: Final = 2_147_483_647


class Candidate(NamedTuple):
    """A broker that is alive and may be the master: the newest epoch of its log, and its end."""

    broker_id: int
    epoch: int = -1
    max_offset: int = 0
    priority: int = DEFAULT_PRIORITY


def elect(
    candidates: Iterable[Candidate],
    in_sync: Collection[int],
    old_master: int | None,
    designated: int | None,
    *,
    unclean: bool,
) -> int | None:
    """The id of the next master; None when nobody may be.

    The designated one or nobody; else the old master when it is alive, else the one with the longest log.
    """
    alive = list(candidates)
    found = _best([each for each in alive if each.broker_id in in_sync], old_master, designated)
    return _best(alive, old_master, designated) if found is None and unclean else found


def _best(candidates: list[Candidate], old_master: int | None, designated: int | None) -> int | None:
    ids = [each.broker_id for each in candidates]
    if designated is not None:
        return designated if designated in ids else None
    if old_master in ids:
        return old_master
    ranked = sorted(candidates, key=lambda each: (-each.epoch, -each.max_offset, each.priority, each.broker_id))
    return ranked[0].broker_id if ranked else None
