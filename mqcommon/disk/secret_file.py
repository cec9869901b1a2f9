"""Reads files that hold secrets, and refuses files that other users of the machine may read.

A file of root that the process may read through its group is taken, too: so orchestrators mount secrets, and nobody
but root chose that group.
"""

import os
import stat
from pathlib import Path

from skylark.mqcommon.errors import ConfigError, UserError

# Files of secrets are short.
MAX_SECRET_BYTES = 1024 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
ROOT = 0


def read_secret_file(path: str | Path) -> str:
    """The text of the file. UserError when it cannot be read, or when its group or others have any right to it."""
    try:
        with open(path, "rb") as file:
            # The mode of the open file, so that the file cannot be exchanged in between.
            check_mode(path, os.fstat(file.fileno()))
            data = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; check the path and its permissions") from None
    if len(data) > MAX_SECRET_BYTES:
        raise UserError(f"{path}: larger than a file of secrets can be ({MAX_SECRET_BYTES} bytes)")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None


def check_mode(path: str | Path, status: os.stat_result, what: str = "secrets") -> None:
    """ConfigError unless only the owner may use the file, which holds ``what``, or root lets this process read it."""
    mode = status.st_mode
    is_mounted = status.st_uid == ROOT and os.geteuid() != ROOT and mode & _OTHERS == stat.S_IRGRP
    if mode & _OTHERS and not is_mounted:
        raise ConfigError(
            f"{path}: it holds {what}, and its mode {stat.S_IMODE(mode):04o} lets others use it; run chmod 600 {path}"
        )
