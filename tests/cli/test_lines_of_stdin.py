"""The lines of stdin that `skylark send` sends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest
from click.testing import CliRunner

from skylark.cli import send
from skylark.cli.main import skylark
from skylark.mqcommon.errors import UserError
from skylark.sdk.producer.producer import MAX_MESSAGE_BYTES


@contextmanager
def stdin(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the command read ``file`` in the block."""
    descriptor = os.open(file, os.O_RDONLY)
    monkeypatch.setattr(send, "_STDIN", descriptor)
    try:
        yield
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("bytes_at_once", [1, 3, 64])
async def test_lines_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_at_once: int) -> None:
    (tmp_path / "lines").write_bytes(b"a\r\nbcde\n\nlast\r")
    monkeypatch.setattr(send, "_READ_BYTES", bytes_at_once)
    with stdin(tmp_path / "lines", monkeypatch):
        assert [line async for line in send._lines_of_stdin()] == [b"a", b"bcde", b"", b"last"]


async def test_a_line_as_long_as_the_largest_message_is_the_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = b"x" * MAX_MESSAGE_BYTES
    (tmp_path / "lines").write_bytes(longest + b"\r\n" + 2 * longest)
    monkeypatch.setattr(send, "_READ_BYTES", 1024 * 1024)
    read = []
    with stdin(tmp_path / "lines", monkeypatch), pytest.raises(UserError, match="longer than the largest message"):
        async for line in send._lines_of_stdin():
            read.append(line)
    assert read == [longest]


async def test_stdin_that_cannot_be_read_is_a_user_s_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stdin(tmp_path, monkeypatch), pytest.raises(UserError, match="stdin cannot be read: Is a directory"):
        async for _ in send._lines_of_stdin():
            pass


class Terminal(BytesIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("source", "told"), [(Terminal(), "Each line is a message; Ctrl-D ends.\n"), (BytesIO(), "")])
def test_a_user_at_a_terminal_is_told_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, source: BytesIO, told: str
) -> None:
    with stdin(Path(os.devnull), monkeypatch):
        result = CliRunner().invoke(skylark, ["send", "orders", "-n", "127.0.0.1:1"], input=source)
    assert (result.exit_code, result.stderr) == (0, told)
