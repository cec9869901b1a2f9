"""A small store whose full log files are in a bucket, and the reads of what was then removed from the store."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from skylark.broker.store.log.residency import Got, NotResident, resident_only, warm
from skylark.broker.store.store import MessageStore
from skylark.broker.tier.reads import OlderReads
from skylark.broker.tier.tasks import UploadTask
from skylark.broker.tier.upload import upload
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.tier.bucket import Bucket
from skylark.mqcommon.tier.manifests import ManifestLog
from skylark.mqcommon.tier.view import TierView
from tests.broker.store.cleaning import clean
from tests.support.clock import ManualClock
from tests.support.memory_bucket import MemoryBucket

T = TypeVar("T")
SET = "broker-a"
MIB = 1 << 20


class Uploaded:
    """``store`` with ``bucket``, and ``reads``, which is its ``log.older``."""

    def __init__(
        self,
        fs: FileSystem,
        store: MessageStore,
        *,
        bucket: Bucket | None = None,
        classes: Mapping[str, int] | None = None,
        cache_bytes: int = 8 * MIB,
        disk_cache: tuple[str, int] | None = None,
    ) -> None:
        self.fs = fs
        self.store = store
        self.bucket = bucket or MemoryBucket()
        self.clock = ManualClock()
        self.manifests = ManifestLog(self.bucket, SET)
        self.manifest = self.manifests.claim(1, b"o" * 16, 1, store.options.commitlog_segment_bytes)
        self._classes = classes or {}
        self.view = TierView(self.bucket, SET, MIB)
        self.reads = OlderReads(
            self.view,
            store,
            self.clock,
            why_refused=str,
            cache_bytes=cache_bytes,
            disk_cache=disk_cache,
            hold_ms=lambda: self.hold_ms,
        )
        #: How long readers wait at damage; None: for ever.
        self.hold_ms: int | None = None

    def upload(self) -> None:
        """Upload all full files of the log that are not in the bucket."""
        chain = self.store.log.chain
        for segment in chain.segments[:-1]:
            if self.manifest.segments and segment.base < self.manifest.end:
                continue
            tombstones = {each.topic: each.physical_offset for each in self.manifest.tombstones}
            before = self.manifest.segments[-1].index if self.manifest.segments else None
            task = UploadTask(SET, segment.base, segment.size, 1, "u", self._classes, before, tombstones, 1, ())
            made = upload(self.bucket, bytes(segment.file.view[: segment.size]), task)
            self.manifest = self.manifest.successor(1).with_segment(made)
            self.manifests.append(self.manifest)

    def clean(self, files: int = 1_000) -> int:
        """Upload what can be, and remove up to ``files`` files of the log; returns how many were removed."""
        self.upload()
        return clean(self.fs, self.store, files)


def asked(read: Callable[[], T]) -> T:
    """The result of ``read`` as the event loop gets it: what is not in memory is read as by a thread."""
    got: Got | None = None
    while True:
        try:
            with resident_only(got):
                return read()
        except NotResident as cold:
            got = warm(cold, got)
