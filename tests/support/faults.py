"""Which calls of a file system fail: the n-th of an operation from now on, and how."""

import errno
import os
from dataclasses import dataclass

from skylark.mqcommon.errors import DiskFull, OutOfDescriptors

# Where OsFiles turns ENOSPC into DiskFull.
_TAKES_ROOM = ("allocate", "create", "mkdirs", "open", "write")


@dataclass
class _Fault:
    operation: str
    path_part: str
    wait: int
    times: int
    code: int


class Faults:
    """A plan of failures; `check` raises when a call's turn has come."""

    def __init__(self) -> None:
        self._planned: list[_Fault] = []

    def fail(self, operation: str, *, nth: int = 1, times: int = 1, code: int = errno.EIO, path_part: str = "") -> None:
        """Let ``times`` calls of ``operation`` on a path with ``path_part`` fail, from the ``nth`` next call on."""
        self._planned.append(_Fault(operation, path_part, nth - 1, times, code))

    def clear(self) -> None:
        """Let nothing fail any more."""
        self._planned.clear()

    @property
    def pending(self) -> bool:
        """Whether some planned failure has not come yet."""
        return bool(self._planned)

    def check(self, operation: str, path: str) -> None:
        """Raise what is planned for this call, as OsFiles would."""
        for fault in self._planned:
            if fault.operation != operation or fault.path_part not in path:
                continue
            if fault.wait:
                fault.wait -= 1
                continue
            fault.times -= 1
            if not fault.times:
                self._planned.remove(fault)
            if fault.code == errno.ENOSPC and operation in _TAKES_ROOM:
                raise DiskFull(f"{path}: no room (injected): make room or move the store")
            if fault.code in (errno.EMFILE, errno.ENFILE):
                raise OutOfDescriptors(f"{path} cannot be opened: no descriptor (injected into {operation})")
            raise OSError(fault.code, f"{os.strerror(fault.code)} (injected into {operation})", path)
