"""`OsFileLock`: a lock on a file, which a store's owner holds, and a client that keeps its offsets in a file."""

import errno
import os
import sys

from skylark.mqcommon.errors import StoreLocked

if sys.platform == "win32":
    import msvcrt

    # Nobody can read bytes that are locked on Windows, so the locked byte is far after the holder's pid.
    _LOCKED_BYTE = 1 << 30

    def _lock(fd: int) -> None:
        os.lseek(fd, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(fd: int) -> None:
        """Lock the file for the owner of ``fd``; OSError when another has the lock.

        Two locks, as they exclude different processes: RocketMQ's Java broker takes a POSIX record lock, but that does
        not exclude a second open by the same process; flock does.
        """
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


class OsFileLock:
    """An exclusive lock on a file, with the holder's pid in it.

    The system gives the lock back when its holder ends, however it ends.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(self._fd)
            if os.fstat(self._fd).st_nlink == 0:  # its holder has removed it since: the next lock is on another file
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        except OSError as error:
            os.lseek(self._fd, 0, os.SEEK_SET)
            holder = os.read(self._fd, 20).strip()
            os.close(self._fd)
            who = f"process {holder.decode()}" if holder.isdigit() else "another process"
            raise StoreLocked(f"{path} is held by {who}: stop it, or give this broker another directory") from error
        # Only the holder writes: a process that finds the lock taken reads here which process holds it.
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        os.write(self._fd, str(os.getpid()).encode())

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
