"""The standard output of a command: characters it cannot encode are escaped; a failed write ends in one clear line.

A terminal or a pipe may have any encoding, and a disk may be full: neither is a bug of the command, and a traceback
would hide the command's output. A reader that has gone (BrokenPipeError) is left to the command.
"""

import codecs
import os
import sys
from collections.abc import Callable
from io import TextIOWrapper


class OutputFailed(Exception):
    """Standard output cannot be written."""


class _Stdout(TextIOWrapper):
    """Standard output that raises OutputFailed instead of OSError, and then drops all further output."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._failed(error) from error

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> OutputFailed:
        # The rest in the buffer would fail again when the interpreter ends, which would print a traceback.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return OutputFailed(f"the output cannot be written: {error.strerror}")


def _guard_stdout() -> None:
    """Let standard output escape what its encoding does not have, and raise OutputFailed when it cannot be written."""
    plain = sys.stdout
    if isinstance(plain, TextIOWrapper):
        codecs.register_error("escaped", _escaped)
        encoding, line_buffering = plain.encoding, plain.line_buffering
        sys.stdout = _Stdout(plain.detach(), encoding, "escaped", line_buffering=line_buffering)


def run_guarded(command: Callable[..., object], prog_name: str) -> None:
    """Call a click command with a guarded standard output. A failed write is a line on stderr, and exit code 1."""
    _guard_stdout()
    try:
        command(prog_name=prog_name)
    except OutputFailed as error:
        sys.stderr.write(f"{prog_name}: {error}\n")
        sys.exit(1)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    r"""The characters as ``\u00e9``: also within strings of JSON, where this means the same."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    text = "".join(rf"\u{int.from_bytes(units[at : at + 2]):04x}" for at in range(0, len(units), 2))
    return text, error.end
