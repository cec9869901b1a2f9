"""Reads and writes the epochs of a log at the place where RocketMQ keeps them.

There is no backup: epochs of an earlier time would say that an earlier master wrote the end of the log.
Both functions block: call them in a thread. A change is on disk before the bytes of its epoch: a master saves it before
its first message, a slave before it appends. After a cut of the log it is saved, too, but later: `load_epochs` makes
the epochs end with the log.
"""

from broker.replication.autoswitch.epochs import OLDER_THAN_CONTROLLER, Epoch, Epochs, decode_file
from mqcommon.atomic import write_atomic
from mqcommon.errors import ProtocolError, StoreCorrupt
from mqcommon.files import FileSystem

FILE_NAME = "epochFileCheckpoint"


def load_epochs(fs: FileSystem, directory: str, log_start: int, log_end: int) -> Epochs:
    """The epochs of the log in store ``directory``, which goes from ``log_start`` to ``log_end`` after recovery.

    StoreCorrupt when the file is damaged.
    """
    path = f"{directory}/{FILE_NAME}"
    try:
        entries = list(decode_file(fs.read(path))) if fs.exists(path) else []
    except ProtocolError as error:
        raise StoreCorrupt(
            path, 0, f"{error}. To copy the log from the master again, run: broker resyncSlave {directory}"
        ) from None
    if log_end > log_start and (not entries or entries[0].start > log_start):
        # The same place in all logs of a set, wherever each begins now.
        entries = [entry for entry in entries if entry.epoch > OLDER_THAN_CONTROLLER]
        entries.insert(0, Epoch(OLDER_THAN_CONTROLLER, 0))
    epochs = Epochs(entries)
    epochs.cut_to(log_end)
    epochs.forget_before(log_start)
    return epochs


def save_epochs(fs: FileSystem, directory: str, data: bytes) -> None:
    """Replace the file by ``data``, which `encode_file` made. Durable. DiskFull leaves it as it was."""
    write_atomic(fs, f"{directory}/{FILE_NAME}", data)
