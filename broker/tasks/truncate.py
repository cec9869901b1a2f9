"""Cuts the end of a slave's log which its new master does not have; what is cut is saved first.

Flushes, checkpoints, the cleaner and deletions of topics wait meanwhile; reads go on. Once the cut has begun it is
ended, also when the caller is cancelled.
Neighbours: store/truncation (the steps), flush.py (the locks).
"""

import logging

import trio

from broker.store.store import MessageStore
from broker.store.truncation.truncation import Truncation
from broker.tasks.flush import Flusher
from mqcommon.disk.files import FileSystem
from mqcommon.errors import DiskFull

logger = logging.getLogger(__name__)


class LogTruncation:
    """Cuts the log of one running store, whose ``directory`` is its storePathRootDir."""

    def __init__(self, fs: FileSystem, directory: str, store: MessageStore, flusher: Flusher) -> None:
        self._fs = fs
        self._directory = directory
        self._store = store
        self._flusher = flusher

    async def cut(self, offset: int) -> None:
        """Let the log end at ``offset``, where a message begins, durably.

        The caller must see to it that this broker is a slave, and that nothing appends to the log or builds its queues
        meanwhile. DiskFull when there is no room to save what would be cut: nothing has changed, and the call can be
        repeated. ReplicationRefused when the log cannot be cut there; nothing has changed either. After any other
        StoreError the broker must stop, and its next start ends the cut.
        """
        store, log = self._store, self._store.log
        if offset == log.raw_end or log.raw_end == log.start:
            return
        self._flusher.log_ends_at(offset)
        await self._flusher.checkpoint(note_ends=True)
        if store.durable_end != log.end or store.entries_waiting:
            raise DiskFull(f"the log cannot be cut at {offset} before its queues are on disk: {store.refusal}")
        async with self._flusher.alone():
            cut = Truncation(self._fs, self._directory, store, offset)
            path = await trio.to_thread.run_sync(cut.save)
            searches = cut.searches()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(cut.begin, searches)
                cut.forget()
                self._flusher.log_ends_at(offset)
                await trio.to_thread.run_sync(cut.cut_files)
                removed = await trio.to_thread.run_sync(cut.finish, *cut.mark())
        logger.warning(
            "%d messages were cut from the end of the log, as the new master does not have them: bytes %d to %d."
            " They are saved; to see them, run: broker printCut %s",
            cut.messages, offset, offset + cut.bytes, path,
        )  # fmt: skip
        for old in removed:
            logger.warning("removed %s, which kept older messages that were cut: newer ones need the room", old)
