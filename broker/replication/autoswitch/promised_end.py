"""The log's end that this broker has reported to its set: if a start finds less, the broker must not be elected.

A member of the SyncStateSet may be elected without a comparison with other members' logs. So a member whose log has
lost messages that it reported, or confirmed as the master, takes a new id, which is not in the set. Its old id never
comes back, so no broker that lacks these messages is elected by that id. The log stays, and the rest is copied from the
master. The file is written through a map, without a sync: it only helps after a kill of the process. After a power loss
the store compares its log with the last completed flush.
"""

import trio

from skylark.broker.part import Part
from skylark.broker.replication.mark import NO_MARK, Mark, Marked, boot_of
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.disk.small_file import SmallFile


class PromisedEnd(Part):
    """The end of the log that this broker has reported to its set, kept in the file ``path``.

    Call `open` before any report, and `promise` each end of the log before it is reported.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._mark = Mark(fs, path)
        self._boot = boot_of(fs)

    def open(self, log_end: int) -> str:
        """Why the log, which ends at ``log_end``, is shorter than it was; "" if it is not. Blocks."""
        marked, damage = self._mark.read(self._boot)
        had = 0 if marked is None else marked.promised
        self._mark.begin(Marked(promised=log_end, boot=self._boot))
        if had > log_end:
            return f"the log ends at {log_end}, and this broker had told its set that it ends at {had}"
        if marked is None and damage != NO_MARK:
            return f"{self._mark.path}: {damage}, so it is not known what this broker told its set"
        return ""

    def promise(self, end: int) -> None:
        """Record that the log up to ``end`` is about to be reported, or is confirmed."""
        if end > self._mark.now.promised:
            self._mark.write(Marked(promised=end, boot=self._boot))

    def cut(self, end: int) -> None:
        """Lower the promise: the log is about to be cut at ``end``, as the master does not have the rest."""
        if end < self._mark.now.promised:
            self._mark.write(Marked(promised=end, boot=self._boot))

    def as_small_file(self) -> SmallFile:
        """The file, for a check."""

        async def restore() -> None:
            self._mark.use(await trio.to_thread.run_sync(self._mark.made_anew))
            await trio.to_thread.run_sync(self._mark.sync)

        return SmallFile(self._mark.path, self._mark.is_whole, restore)

    async def close(self) -> None:
        self._mark.close()
