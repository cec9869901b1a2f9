"""Starts the log of a daemon, as its options say."""

import logging
import os
import sys
from collections.abc import Callable

from mqcommon.errors import UserError
from mqcommon.logs.file import LogFile
from mqcommon.logs.formats import JsonFormatter, LineFormatter
from mqcommon.logs.levels import change_levels
from mqcommon.logs.options import JSON, LogOptions
from mqcommon.logs.rotation import Rotation
from mqcommon.logs.writer import LogWriter


class Log:
    """The log of this process, from `start_log` to `close`."""

    def __init__(self, writer: LogWriter, file: LogFile | None) -> None:
        self._writer = writer
        self.file = file

    def close(self) -> None:
        """Write what waits, and log nothing more."""
        logging.getLogger().removeHandler(self._writer)
        self._writer.close()


def start_log(options: LogOptions) -> Log:
    """Log as ``options`` say. Raises UserError when the file cannot be opened."""
    formatter = JsonFormatter() if options.log_format == JSON else LineFormatter()
    file = _open_file(options) if options.log_file else None
    writer = _to_file(file, formatter) if file else _to_stderr(formatter)
    change_levels("", options.log_levels)
    logging.getLogger().addHandler(writer)
    return Log(writer, file)


def _open_file(options: LogOptions) -> LogFile:
    rotation = Rotation(options.log_file_max_size, options.log_file_max_age, options.log_file_max_count)
    file = LogFile(os.path.expanduser(options.log_file), rotation)
    try:
        file.open()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"logFile: {options.log_file!r} cannot be opened: {reason}; name a file that this user may write"
        ) from None
    return file


def _to_file(file: LogFile, formatter: logging.Formatter) -> LogWriter:
    return LogWriter(file.write, formatter, place=file.path, complaints=_stderr())


def _to_stderr(formatter: logging.Formatter) -> LogWriter:
    return LogWriter(_stderr(), formatter, place="stderr", complaints=None)


def _stderr() -> Callable[[bytes], None]:
    """Writes to stderr, if the process has one: else its descriptor may be that of a file of messages.

    It does not use the stream: a thread that waits in it holds its lock, and Python cannot end without that.
    """
    fd = -1 if sys.stderr is None else sys.stderr.fileno()

    def write(data: bytes) -> None:
        rest = memoryview(data)
        while rest and fd >= 0:
            rest = rest[os.write(fd, rest) :]

    return write
