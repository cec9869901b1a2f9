"""The log of a daemon: `start_log` installs a logging handler whose lines are formatted and written by a thread.

A logging call costs a place in a queue. The queue is bounded: lines that come faster than they can be written are
counted, and the log says how many are missing. A full disk loses lines, and nothing else. Logging itself never raises;
only `start_log` does, when the log file cannot be opened.
"""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from skylark.mqcommon.errors import UserError
from skylark.mqcommon.logs.formats import JsonFormatter, LineFormatter, fields_of
from skylark.mqcommon.logs.options import JSON, LogOptions, change_levels
from skylark.mqcommon.logs.rotated_file import RotatedFile, Rotation

MAX_WAITING = 10_000
# Lines that are written at a time.
_BATCH = 500
# How long `close` waits until the waiting lines are written.
CLOSE_TIMEOUT_S = 3.0

#: Writes whole lines; raises OSError.
Write = Callable[[bytes], None]


class LogWriter(logging.Handler):
    """A logging handler whose thread formats records and passes the lines to ``write``.

    ``complaints`` gets a line that names ``place`` when ``write`` begins to fail.
    """

    def __init__(
        self,
        write: Write,
        formatter: logging.Formatter,
        *,
        place: str,
        complaints: Callable[[bytes], object] | None,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._write = write
        self._with_fields = isinstance(formatter, JsonFormatter)
        self._place = place
        self._complaints = complaints
        self._max_waiting = max_waiting
        self._records: SimpleQueue[logging.LogRecord | None] = SimpleQueue()
        self._counting = threading.Lock()
        self._dropped = 0
        self._lost = 0
        self._has_failed = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        with self._counting:
            if self._is_closed or self._records.qsize() >= self._max_waiting:
                self._dropped += 1
                return
        self._records.put(_settled(record, with_fields=self._with_fields))

    def close(self) -> None:
        """Write what waits, for CLOSE_TIMEOUT_S at most."""
        with self._counting:
            was_closed, self._is_closed = self._is_closed, True
        # The mark comes after the last line, so all lines before it are written. The wait has a limit: it may be that
        # nobody reads the pipe.
        if not was_closed:
            self._records.put(None)
            self._thread.join(CLOSE_TIMEOUT_S)
        super().close()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            batch = [self._records.get()]
            while len(batch) < _BATCH:
                try:
                    batch.append(self._records.get_nowait())
                except Empty:
                    break
            is_last = None in batch
            self._write_batch([record for record in batch if record is not None])

    def _write_batch(self, batch: list[logging.LogRecord]) -> None:
        with self._counting:
            dropped, self._dropped = self._dropped, 0
        # Dropped lines belong after this batch; lost lines (of batches that could not be written) before it.
        if dropped:
            batch.append(_own_record("%d lines are missing here: they came faster than they could be written", dropped))
        lines = [self._line(record) for record in batch]
        if self._lost:
            lines.insert(0, self._line(_own_record("%d lines are missing here: they could not be written", self._lost)))
        try:
            self._write("".join(lines).encode("utf-8", "backslashreplace"))
        except Exception as error:  # whatever it is, this thread goes on
            # Not written again: on a disk that is full for hours, the lines of hours would have to be kept.
            self._lost += len(batch)
            self._complain(error)
        else:
            self._lost = 0
            self._has_failed = False

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record) + "\n"
        except Exception as error:
            return self.format(_own_record("a line of %s cannot be shown: %r", record.name, error)) + "\n"

    def _complain(self, error: Exception) -> None:
        """Say once that lines are lost, where somebody may see it."""
        if self._has_failed or self._complaints is None:
            return
        self._has_failed = True
        text = f"{self._place} cannot be written, lines are lost until it can be: {error}\n"
        with contextlib.suppress(OSError):
            self._complaints(text.encode("utf-8", "backslashreplace"))


def _settled(record: logging.LogRecord, *, with_fields: bool) -> logging.LogRecord:
    """A copy whose text is made: the arguments may change before the thread comes to it."""
    settled = logging.LogRecord.__new__(logging.LogRecord)
    vars(settled).update(vars(record))
    try:
        if with_fields:
            settled.fields = fields_of(record)
        settled.msg = record.getMessage()
    except Exception as error:
        settled.msg = f"{record.msg!s:.500} (its arguments cannot be shown: {type(error).__name__})"
    settled.args = None
    return settled


def _own_record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, args, None)


class DaemonLog:
    """The log of this process, from `start_log` to `close`."""

    def __init__(self, writer: LogWriter, file: RotatedFile | None) -> None:
        self._writer = writer
        self.file = file

    def close(self) -> None:
        """Write what waits, and log nothing more."""
        logging.getLogger().removeHandler(self._writer)
        self._writer.close()


def start_log(options: LogOptions) -> DaemonLog:
    """Log as ``options`` say. Raises UserError when the file cannot be opened."""
    formatter = JsonFormatter() if options.log_format == JSON else LineFormatter()
    file = _open_file(options) if options.log_file else None
    writer = _to_file(file, formatter) if file else _to_stderr(formatter)
    change_levels("", options.log_levels)
    logging.getLogger().addHandler(writer)
    return DaemonLog(writer, file)


def _open_file(options: LogOptions) -> RotatedFile:
    rotation = Rotation(options.log_file_max_size, options.log_file_max_age, options.log_file_max_count)
    file = RotatedFile(os.path.expanduser(options.log_file), rotation)
    try:
        file.open()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"logFile: {options.log_file!r} cannot be opened: {reason}; name a file that this user may write"
        ) from None
    return file


def _to_file(file: RotatedFile, formatter: logging.Formatter) -> LogWriter:
    return LogWriter(file.write, formatter, place=file.path, complaints=stderr_writer())


def _to_stderr(formatter: logging.Formatter) -> LogWriter:
    return LogWriter(stderr_writer(), formatter, place="stderr", complaints=None)


def stderr_writer() -> Callable[[bytes], None]:
    """A function that writes to stderr, if the process has one: if not, the descriptor may be of a file of messages.

    It does not use the stream: a thread that waits in the stream holds its lock, without which Python cannot end.
    """
    fd = -1 if sys.stderr is None else sys.stderr.fileno()

    def write(data: bytes) -> None:
        rest = memoryview(data)
        while rest and fd >= 0:
            rest = rest[os.write(fd, rest) :]

    return write
