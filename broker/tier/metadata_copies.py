"""Copies of the metadata for the bucket: the files of ``config`` as they are at one moment.

With the log the copies bring back topics, groups, offsets and users. Like the files, the copies hold users' secrets.
Neighbours: admin/backup.py (copies the same files), store/backup/from_bucket.py (writes them to a new store).
"""

import logging

import trio

from skylark.broker.meta.journal import Journal, JournalPosition
from skylark.broker.options import BrokerOptions
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.persist import Persister
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import StoreError
from skylark.mqcommon.tier.metadata import MetadataCopy, encode_metadata
from skylark.mqcommon.version import VERSION
from skylark.remoting.net.steps import slices

logger = logging.getLogger(__name__)

# Queues that are looked at in one turn of the event loop.
_QUEUES_AT_ONCE = 5_000

#: Topic -> queue -> next offset.
EmptyQueues = dict[str, dict[int, int]]


class MetadataCopies:
    """Makes copies of one broker's metadata."""

    def __init__(
        self,
        fs: FileSystem,
        options: BrokerOptions,
        store: MessageStore,
        journal: Journal,
        persister: Persister,
        clock: Clock,
    ) -> None:
        self._fs = fs
        self._options = options
        self._store = store
        self._journal = journal
        self._persister = persister
        self._clock = clock
        # The journal's position and the empty queues, of the last copy that was made, and of the copy in the bucket.
        self._made: tuple[JournalPosition, EmptyQueues] | None = None
        self._stored: tuple[JournalPosition, EmptyQueues] | None = None

    async def make(self) -> bytes | None:
        """The bytes of a copy; None if nothing has changed since the copy in the bucket, or files cannot be read."""
        root = self._options.store_path_root_dir
        try:
            async with self._persister.files_kept():
                await self._persister.append_offsets()
                # No ``await`` between these: the journal and the log are of the same moment.
                position, log_end, made_ms = self._journal.position, self._store.log.end, self._clock.now_ms()
                # Queues become empty when files leave the log, and nothing of that is in the journal.
                state = position, await self._empty_queues()
                if state == self._stored:
                    return None
                files = await trio.to_thread.run_sync(self._read, root, position)
        except (OSError, StoreError) as error:
            logger.error("tier: the metadata cannot be copied: %s", error)
            return None
        self._made = state
        options, store = self._options, self._store.options
        mode = "DLedger" if options.enable_dleger_commit_log else "Controller" if options.elects_master else "plain"
        return encode_metadata(
            MetadataCopy(
                options.broker_name,
                options.broker_cluster_name,
                mode,
                VERSION,
                made_ms,
                log_end,
                store.consumequeue_segment_bytes,
                store.batchqueue_segment_bytes,
                store.index_slots,
                store.index_capacity,
                files,
                state[1],
            )
        )

    async def _empty_queues(self) -> EmptyQueues:
        found: EmptyQueues = {}
        for queues in slices(list(self._store.queues), _QUEUES_AT_ONCE):
            for queue in queues:
                if queue.is_empty and queue.next_offset:
                    found.setdefault(queue.topic, {})[queue.queue_id] = queue.next_offset
            await trio.lowlevel.checkpoint()
        return found

    def stored(self) -> None:
        """The last copy is in the bucket."""
        self._stored = self._made

    def _read(self, root: str, position: JournalPosition) -> dict[str, bytes]:
        fs, directory = self._fs, f"{root}/config"
        # RocketMQ's files, too, which an import reads.
        others = [f"{directory}/{name}" for name in fs.listdir(directory) if not name.startswith("metadata.")]
        files = self._journal.files_to(position) + [(path, fs.size(path)) for path in others if not fs.is_dir(path)]
        return {path.removeprefix(f"{root}/"): fs.read(path)[:limit] for path, limit in files}
