"""How to tell the store of a member of a DLedger group: every broker looks, as it must not open the other kind."""

from skylark.broker.store.log.commitlog import CommitLog
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import ConfigError, StoreCorrupt

#: What only members of a group have is in this directory of the store.
DIRECTORY = "dledger"


class LostDisk(StoreCorrupt):
    """This member has fewer entries than it promised to other members: it must not speak for its id any more.

    It must neither stand for election nor vote, since it would do so with the shorter log.
    """

    def __str__(self) -> str:
        return (
            f"{self.file}: {self.reason}. This member has forgotten what it promised, and must not go on. While the"
            " other members are a majority and whole, it joins them anew by itself, and keeps its store aside."
            " Otherwise put a copy of the store back (docs/operate/dledger.md)"
        )


def has_entries(fs: FileSystem, directory: str) -> bool:
    """Whether ``directory`` of a member has files of entries."""
    return bool(fs.listdir(f"{directory}/entries"))


def is_group_store(fs: FileSystem, directory: str) -> bool:
    """Whether the store in ``directory`` belongs to a member of a DLedger group; it may be damaged."""
    return fs.exists(f"{directory}/{DIRECTORY}/state") or has_entries(fs, f"{directory}/{DIRECTORY}")


def check_kind(fs: FileSystem, directory: str, log: CommitLog, *, in_group: bool) -> None:
    """ConfigError when the store of one kind is opened as the other kind."""
    is_of_group = is_group_store(fs, directory)
    if is_of_group and not in_group:
        raise ConfigError(
            f"enableDLegerCommitLog: {directory} is the store of a member of a DLedger group: set it to true. To leave"
            f" the group for good, remove the directory {directory}/{DIRECTORY} first (docs/operate/dledger.md)"
        )
    if in_group and not is_of_group and log.raw_end > log.start:
        raise ConfigError(
            f"enableDLegerCommitLog: {directory} has messages, and nothing of a DLedger group. If it was a member of"
            " one, move it away: with an empty storePathRootDir this broker joins the group anew. To make the store of"
            f" an ordinary broker the first member of a new group, run: broker dledger-init {directory}"
            " (docs/operate/dledger.md)"
        )
