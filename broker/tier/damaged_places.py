"""Damage of the bucket that readers have met: how long readers wait at damage, and when they skip it.

As on a disk (damage_hold.py): for ``damagedHoldMs`` from the first attempt on readers wait, since an administrator may
bring the object back. After this time readers skip the damaged messages until the messages can be read again
(``damagedPolicy=skip``), or wait for ever (``damagedPolicy=hold``). Each object has one such time for all its damaged
places, of which there may be thousands. Each attempt reads the bytes anew. An object that was right meanwhile, and is
damaged again, has a new time. For any thread.
Neighbours: reads.py.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable

from skylark.mqcommon.clock import Clock
from skylark.mqcommon.tier.bucket import NoSuchObject

logger = logging.getLogger(__name__)

#: With more objects the object that was met first is forgotten: its next reader waits anew.
MAX_OBJECTS = 256
#: With more places of an object the place that was met first is forgotten: its messages count again when skipped.
MAX_PLACES = 20_000

#: What tells an object from others, and a position in it; for an index a queue, and for its messages an offset.
Place = tuple[str, Hashable]


class _Met:
    """One object. ``places``: positions that could not be read, and whether readers have skipped them."""

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.places: dict[Hashable, bool] = {}
        self.is_skipped = False


class DamagedPlaces:
    """``hold_ms``: how long readers wait at an object; None: until it can be read. Asked anew each time."""

    def __init__(self, clock: Clock, hold_ms: Callable[[], int | None]) -> None:
        #: How many messages were skipped; a message that later readers skip again counts once.
        self.skipped_messages = 0
        self._clock = clock
        self._hold_ms = hold_ms
        self._objects: OrderedDict[str, _Met] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, place: Place) -> bool:
        met = self._objects.get(place[0])
        return met is not None and place[1] in met.places

    def positions(self, name: str) -> Collection[Hashable]:
        """The positions in object ``name`` that could not be read."""
        with self._lock:
            met = self._objects.get(name)
            return () if met is None else set(met.places)

    def may_pass(self, place: Place, what: str, messages: int, error: Exception) -> bool:
        """A reader could not read ``what`` at ``place``, for ``error``: whether it may skip these ``messages`` now.

        At a missing object each reader makes two attempts, the second with the newest manifest.
        """
        now_ms = self._clock.monotonic_ms()
        name, position = place
        with self._lock:
            met = self._objects.get(name)
            if met is None:
                met = self._objects[name] = _Met(now_ms)
                if len(self._objects) > MAX_OBJECTS:
                    self._objects.popitem(last=False)
            is_new = position not in met.places
            was_skipped = met.places.setdefault(position, False)
            if len(met.places) > MAX_PLACES:
                del met.places[next(iter(met.places))]
            hold_ms = self._hold_ms()
            if hold_ms is None or now_ms < met.since_ms + hold_ms or (is_new and isinstance(error, NoSuchObject)):
                return False
            is_first = not met.is_skipped
            met.is_skipped = met.places[position] = True
            if not was_skipped:
                self.skipped_messages += messages
        log = logger.error if is_first else logger.debug
        if not was_skipped:
            log(
                "%s could not be read from the bucket for %d ms. Readers skip them, and what else is damaged in this"
                " object, until it can be read again (damagedPolicy): %s. Bring the object back from its versions or a"
                " copy of the bucket",
                what, hold_ms, error,
            )  # fmt: skip
        return True

    def was_read(self, place: Place) -> None:
        """The bytes at ``place`` are right now."""
        if place not in self:
            return
        name, position = place
        with self._lock:
            met = self._objects.get(name)
            if met is None or met.places.pop(position, None) is None or met.places:
                return
            del self._objects[name]
        _log_right(name)

    def object_was_read(self, name: str) -> None:
        """All bytes of the object that its places count are right now."""
        if name in self._objects:
            with self._lock:
                is_known = self._objects.pop(name, None) is not None
            if is_known:
                _log_right(name)


def _log_right(name: str) -> None:
    logger.info("what was damaged in the bucket can be read again: %s", name)
