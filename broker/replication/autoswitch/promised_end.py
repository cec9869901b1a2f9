"""Up to where this broker has told its set that it has the log: a start that finds less must not be elected.

A member of the SyncStateSet may be elected without a look at what the others have. So a member whose log has lost
messages that it reported, or confirmed as the master, takes a new id, which is not in the set. Its old id never comes
back, and nobody is elected in its place who lacks them. The log stays, and the rest is copied from the master.
The file is written through a map, without a sync: it tells after a kill of the process only. After a power loss the
store compares its log with the last completed flush.
"""

from skylark.broker.part import Part
from skylark.broker.replication.mark import NO_MARK, Mark, Marked, boot_of
from skylark.mqcommon.disk.files import FileSystem


class PromisedEnd(Part):
    """The file ``path``. `open` it before anything is reported, and `note` what is reported before it leaves."""

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

    def note(self, end: int) -> None:
        """The log up to ``end`` is reported, or confirmed."""
        if end > self._mark.now.promised:
            self._mark.write(Marked(promised=end, boot=self._boot))

    def cut(self, end: int) -> None:
        """The log is about to be cut at ``end``, as the master does not have the rest."""
        if end < self._mark.now.promised:
            self._mark.write(Marked(promised=end, boot=self._boot))

    async def close(self) -> None:
        self._mark.close()
