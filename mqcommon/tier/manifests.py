"""The manifests of one set in a bucket: finds the newest without a list; only one owner can create the next.

Numbers are dense. Kept are manifest 0, all multiples of `KEPT`, and the newest `KEPT`; `ManifestLog.append` removes the
manifest that is no longer among these. So a multiple of `KEPT` exists if and only if the newest manifest is not before
it: bisection finds the newest multiple. All manifests from this multiple up to the newest exist: bisection finds the
newest manifest, too.
A bucket's creation fences: of all callers that create a number one succeeds, and the others learn whose the number is.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from skylark.mqcommon.tier.bucket import (
    Bucket,
    BucketAway,
    BucketError,
    DamagedObject,
    NewerFormat,
    NoSuchObject,
    ObjectExists,
)
from skylark.mqcommon.tier.layout import manifest_name
from skylark.mqcommon.tier.manifest import Manifest, decode_manifest, encode_manifest, first_manifest

KEPT: Final = 1_024
_TRIES = 3

logger = logging.getLogger(__name__)


class Deposed(BucketError):
    """Another owner has created manifests: this process may not write any more. ``newer``: the newest manifest."""

    def __init__(self, newer: Manifest) -> None:
        super().__init__(newer)
        self.newer = newer

    def __str__(self) -> str:
        return f"another owner, of epoch {self.newer.epoch}, has created manifest {self.newer.number}"


class ArrivedLate(BucketError):
    """A manifest of this owner, whose creation had an unknown outcome, has this number: go on from ``newer``."""

    def __init__(self, newer: Manifest) -> None:
        super().__init__(newer)
        self.newer = newer

    def __str__(self) -> str:
        return f"manifest {self.newer.number} of this owner was created after its creation had seemed to fail"


class DamagedManifest(DamagedObject):
    """The newest manifest, number ``number``, is damaged. `ManifestLog.claim` goes on from the manifest before it."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number = number
        self.reason = reason

    def __str__(self) -> str:
        return f"manifest {self.number}: {self.reason}"


class ManifestLog:
    """The manifests of ``broker_set``. Calls block; one thread at a time."""

    def __init__(self, bucket: Bucket, broker_set: str) -> None:
        self._bucket = bucket
        self._set = broker_set
        # The newest manifest that this object has seen: a search begins with it.
        self._seen: Manifest | None = None

    def newest(self) -> Manifest | None:
        """The newest manifest; None if the bucket has none of this set. Raises DamagedManifest."""
        for left in reversed(range(_TRIES)):
            number = self._newest_number()
            if number is None:
                return None
            if self._seen is not None and self._seen.number == number:
                return self._seen
            try:
                self._seen = self.read(number)
            except NoSuchObject:
                # More than `KEPT` manifests have been created meanwhile, so manifest ``number`` has been removed.
                if not left:
                    raise
            except NewerFormat:
                raise
            except DamagedObject as error:
                # What is between the broker and the bucket may have changed the bytes.
                if not left:
                    raise DamagedManifest(number, str(error)) from None
            else:
                return self._seen
        raise AssertionError

    def newest_or_stand_in(self) -> Manifest | None:
        """As `newest`; for a damaged manifest the last sound manifest before it, with the damaged manifest's number.

        Only for a caller that is about to own the set. The last change of the set is lost, and the caller makes the
        change again: mostly a segment whose file is still in the log, or a copy of metadata. Raises DamagedObject when
        no manifest is sound.
        """
        try:
            return self.newest()
        except DamagedManifest as damage:
            for number in range(damage.number - 1, max(damage.number - KEPT, -1), -1):
                try:
                    found = self.read(number)
                except NewerFormat:
                    raise
                except DamagedObject:
                    continue
                logger.error(
                    "tier: %s %s. Its owner goes on from manifest %d",
                    self._name(damage.number), damage.reason, number,
                )  # fmt: skip
                # The damaged manifest may have been the first one of a later owner without a term.
                return replace(found, number=damage.number, epoch=found.epoch + 1)
            raise DamagedObject(
                f"{damage}, and so are all before it: bring them back from their versions or a copy of the bucket"
            ) from None

    def read(self, number: int) -> Manifest:
        """The manifest with this number. Raises NoSuchObject, DamagedObject."""
        return decode_manifest(self._bucket.get(self._name(number)))

    def claim(
        self, term: int, owner: bytes, now_ms: int, segment_bytes: int, *, anew_after: int | None = None
    ) -> Manifest:
        """Become the owner of the set, by a manifest with a greater epoch; returns that manifest.

        ``term``: of the Controller or DLedger; 0 where there is none. ``segment_bytes``: for the first manifest.
        ``anew_after``: a new generation begins after the manifest with this number.
        Raises Deposed when there is an owner of a later term; with ``anew_after``, when there is a later manifest.
        """
        while True:
            base = self.newest_or_stand_in()
            if base is None:
                wanted = first_manifest(term, owner, now_ms, segment_bytes)
            elif anew_after is not None and base.owner == owner:
                # An earlier call has created ``base``, and did not see the answer.
                return base
            elif base.number != anew_after if anew_after is not None else base.term > term:
                raise Deposed(base)
            else:
                wanted = base.taken_over(term, owner, now_ms, anew=anew_after is not None)
            try:
                self.append(wanted)
            except (Deposed, ArrivedLate) as newer:
                # A manifest that was created at the same time may be of an owner of an earlier term: claim again.
                logger.info("tier: %s is claimed again, as %s", self._set, newer)
            else:
                return wanted

    def append(self, manifest: Manifest) -> None:
        """Create ``manifest``, whose number follows the newest manifest's, and read it back.

        Raises Deposed or ArrivedLate when its number is taken. After BucketAway the outcome is unknown: append the same
        manifest again, or begin anew with `newest`.
        """
        data = encode_manifest(manifest)
        name = self._name(manifest.number)
        try:
            self._bucket.create(name, data)
        except ObjectExists:
            pass
        except BucketAway:
            if not self._exists(manifest.number):
                raise
        try:
            found = self._bucket.get(name)
        except NoSuchObject:
            raise Deposed(self._after(manifest)) from None
        if found != data:
            newer = decode_manifest(found)
            self._seen = newer
            if newer.owner == manifest.owner:
                raise ArrivedLate(newer)
            raise Deposed(self.newest() or newer)
        if self._exists(_next_multiple(manifest.number)):
            # Others have removed the manifest that had this number: this owner slept while `KEPT` others were made.
            self._bucket.delete([name])
            raise Deposed(self._after(manifest))
        self._seen = manifest
        self._remove(manifest.number - KEPT)

    def _after(self, manifest: Manifest) -> Manifest:
        self._seen = None
        newest = self.newest()
        return newest if newest is not None else manifest

    def _remove(self, number: int) -> None:
        """Remove a manifest that need not be kept."""
        if number > 0 and number % KEPT:
            try:
                self._bucket.delete([self._name(number)])
            except BucketError as error:
                # The manifest stays for ever: 100 KB that no reader looks at.
                logger.info("tier: %s stays: %s", self._name(number), error)

    def _newest_number(self) -> int | None:
        if self._seen is not None:
            # After the seen manifest all numbers exist up to the newest, unless the next multiple of `KEPT` exists.
            number = self._seen.number
            is_newest = not self._exists(number + 1) and not self._exists(_next_multiple(number))
            # The seen manifest is gone when somebody has emptied the bucket.
            if is_newest and self._exists(number):
                return number
        if not self._exists(0):
            return None
        high = 1
        while self._exists(high * KEPT):
            high *= 2
        multiple = KEPT * _last(lambda place: self._exists(place * KEPT), high // 2, high)
        return multiple + _last(lambda place: self._exists(multiple + place), 0, KEPT)

    def _exists(self, number: int) -> bool:
        try:
            self._bucket.head(self._name(number))
        except NoSuchObject:
            return False
        return True

    def _name(self, number: int) -> str:
        return manifest_name(self._set, number)


def _next_multiple(number: int) -> int:
    return (number // KEPT + 1) * KEPT


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last number for which ``holds``, which holds for ``low`` and not for ``high``."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
