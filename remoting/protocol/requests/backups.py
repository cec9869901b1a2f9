"""Backups of a broker's store, Skylark's own: begin one (7150), and how far it is (7151)."""

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import LONG, TEXT, Body, member
from skylark.remoting.protocol.header import Header, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.rights import GET_CLUSTER, UPDATE_CLUSTER
from skylark.remoting.protocol.scalars import read_text

#: The states of a backup. A broker that has made none since its start answers `NO_BACKUP`.
NO_BACKUP, RUNNING, DONE, FAILED = "", "running", "done", "failed"


@lazy_dataclass(slots=True)
class BackUpStoreRequestHeader(Header):
    """7150: back up the store to the directory ``backup/<name>`` in it. Answered when the backup has begun."""

    name: str = required(read_text)


@lazy_dataclass(slots=True)
class BackupStatus(Body):
    """The answer to 7151: the last backup since the broker's start.

    ``error``: why it failed. ``copied`` of ``to_copy`` bytes are copied, ``linked`` bytes need no copy, and ``files``
    counts files of both kinds. The backup has the log from ``log_start`` to ``log_end``; ``took_ms`` until it was done.
    """

    state: str = member(TEXT, NO_BACKUP)
    name: str = member(TEXT, "")
    directory: str = member(TEXT, "")
    error: str = member(TEXT, "")
    files: int = member(LONG, 0)
    linked: int = member(LONG, 0)
    copied: int = member(LONG, 0)
    to_copy: int = member(LONG, 0)
    log_start: int = member(LONG, 0)
    log_end: int = member(LONG, 0)
    took_ms: int = member(LONG, 0)


BACK_UP_STORE = Request(7150, BackUpStoreRequestHeader, NOTHING, NOTHING, NOTHING, right=UPDATE_CLUSTER)
GET_BACKUP_STATUS = Request(7151, NOTHING, NOTHING, NOTHING, BackupStatus, right=GET_CLUSTER)
