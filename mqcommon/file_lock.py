"""The lock of the machine's own disk; see FileLock in files.py."""

import fcntl
import os

from mqcommon.errors import StoreLocked


class OsFileLock:
    """An exclusive lock on a file, with the holder's pid in it.

    It takes two locks, as they exclude different processes: RocketMQ's Java broker takes a POSIX record lock, but that
    does not exclude a second open by the same process; flock does.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 20, 0).strip()
            os.close(self._fd)
            who = f"process {holder.decode()}" if holder.isdigit() else "another process"
            raise StoreLocked(f"{path} is held by {who}: stop it, or give this broker another directory") from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
