"""A tier without threads and child processes, around a store of a test: each step runs at once."""

from collections.abc import Callable
from typing import Any

from skylark.broker.options import BrokerOptions
from skylark.broker.replication.role import RoleMachine
from skylark.broker.store.store import MessageStore
from skylark.broker.tier.purge import purge
from skylark.broker.tier.repair import repair
from skylark.broker.tier.tasks import Uploader, UploadTask
from skylark.broker.tier.tier import Tier, TierSources
from skylark.broker.tier.upload import upload
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.tier.bucket import Bucket
from skylark.mqcommon.tier.manifest import Segment
from skylark.mqcommon.tier.view import TierView
from tests.support.clock import ManualClock

SET = "set-a"


class InlineUploader:
    """Uploads in this process."""

    def __init__(self, bucket: Bucket, fs: FileSystem) -> None:
        self._bucket = bucket
        self._fs = fs
        #: The uploads that the tier has asked for.
        self.tasks: list[UploadTask] = []

    async def upload(self, path: str, task: UploadTask) -> Segment:
        self.tasks.append(task)
        return upload(self._bucket, self._fs.read(path), task)

    async def purge(self, segment: Segment, task: UploadTask) -> Segment | None:
        return purge(self._bucket, segment, task)

    async def repair(self, segment: Segment, path: str, task: UploadTask) -> Segment | None:
        return repair(self._bucket, segment, self._fs.read(path) if path else None, task)

    async def rest(self) -> None:
        """There is no process to end."""


class Copies:
    """Copies of metadata that stays the same unless a test sets ``now``."""

    def __init__(self) -> None:
        self.now: bytes | None = b"topics, groups, offsets"

    async def make(self) -> bytes | None:
        return self.now

    def stored(self) -> None:
        self.now = None


async def at_once(function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function`` at once, where the tier would have a thread call it."""
    return function(*args)


class InlineTier:
    """The tier of a broker that is the master while ``broker_id`` is 0, on ``store``."""

    def __init__(
        self,
        bucket: Bucket,
        fs: FileSystem,
        store: MessageStore,
        clock: ManualClock,
        *,
        broker_id: int = 0,
        term: int | None = None,
        uploader: Uploader | None = None,
        run_sync: Callable[..., Any] = at_once,
        **options: Any,
    ) -> None:
        self.store, self.clock = store, clock
        self.role = RoleMachine(broker_id)
        self.term = term
        self.classes: dict[str, int] = {}
        self.deletions: dict[str, int] = {}
        self.suspects: list[int] = []
        self.copies = Copies()
        self.is_following = False
        #: Where the log is safe; by default where it is flushed.
        self.limit: Callable[[], int] = lambda: store.safe_end
        self.uploader = InlineUploader(bucket, fs)
        self.view = TierView(bucket, SET, 1 << 20)
        options = {"tier_path": "file:///unused", "mapped_file_size_commit_log": 4096, **options}
        self.tier = Tier(
            bucket,
            SET,
            self.view,
            store,
            self.role,
            BrokerOptions(**options),
            clock,
            uploader or self.uploader,
            TierSources(
                lambda: self.limit(),
                lambda: self.role.now.is_master,
                lambda: self.term,
                lambda: self.classes,
                lambda: self.deletions,
                self.copies,
                self.suspects.extend,
                lambda: self.is_following,
            ),
            run_sync,
        )

    async def settle(self, steps: int = 100) -> None:
        """Step until there is nothing more to do."""
        for _ in range(steps):
            if await self.tier.step():
                return
        raise AssertionError(f"there is always more to do after {steps} steps")
