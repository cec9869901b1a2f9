"""Reads files that hold secrets, and refuses files that other users of the machine may read."""

import os
import stat
import sys
from pathlib import Path

from skylark.mqcommon.errors import ConfigError, UserError

# Files of secrets are short.
MAX_SECRET_BYTES = 1024 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_secret_file(path: str | Path) -> str:
    """The text of the file. UserError when it cannot be read, or when its group or others have any right to it."""
    try:
        with open(path, "rb") as file:
            # The mode of the open file, so that the file cannot be exchanged in between.
            check_mode(path, os.fstat(file.fileno()).st_mode)
            data = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; check the path and its permissions") from None
    if len(data) > MAX_SECRET_BYTES:
        raise UserError(f"{path}: larger than a file of secrets can be ({MAX_SECRET_BYTES} bytes)")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None


def check_mode(path: str | Path, mode: int, what: str = "secrets") -> None:
    """ConfigError unless ``mode`` lets only the owner use the file, which holds ``what``."""
    # Windows has other rights, and Python makes up the mode: it always lets others read.
    if sys.platform != "win32" and mode & _OTHERS:
        raise ConfigError(
            f"{path}: it holds {what}, and its mode {stat.S_IMODE(mode):04o} lets others use it; run chmod 600 {path}"
        )
