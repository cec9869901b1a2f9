"""Code blocks of the manual, and a reader who types them.

A block that cannot be run says why in a comment on the line before its fence, which readers of the page do not see:
``<!-- not run: needs Docker -->``. ``<!-- runs until Ctrl-C -->`` marks a program that does not end by itself, and
``<!-- runs until Ctrl-C; prints ready -->`` one that has to print this before the next block is typed. A program with
``title="handle.py"`` behind its language is a file, which a shell block of the same page may start.
"""

import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from scripts.daemons import ROOT, Process
from tests.support.waiting import DEADLINE_S, until_true
from tests.support.warm_daemons import WarmDaemons

BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>.*?) -->\n+)?```(?P<language>[a-z]*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
NOT_RUN, UNTIL_CTRL_C = "not run: ", "runs until Ctrl-C"
# What installs packages is tried by tests of installation, and would take minutes here.
STUBS = ("pip",)
INTERRUPTED = (0, -signal.SIGINT, 128 + signal.SIGINT)


@dataclass(frozen=True)
class Block:
    """A code block of a page; ``mark`` is the comment before it, or empty."""

    page: str
    line: int
    language: str
    title: str
    mark: str
    text: str

    @property
    def not_run(self) -> str:
        """Why the block is not run; empty when it is."""
        return self.mark.removeprefix(NOT_RUN) if self.mark.startswith(NOT_RUN) else ""

    @property
    def ends(self) -> bool:
        """Whether the program ends by itself."""
        return not self.mark.startswith(UNTIL_CTRL_C)

    @property
    def prints(self) -> str:
        """What a program that does not end has to print before the next block is typed; empty: nothing."""
        return self.mark.partition("; prints ")[2]


def blocks(page: str) -> list[Block]:
    """The code blocks of a page, a path below the repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            page, text.count("\n", 0, found.start("language")) + 1, found["language"], found["title"] or "",
            found["mark"] or "", found["text"],
        )
        for found in BLOCK.finditer(text)
    ]  # fmt: skip


def programs(page: str) -> list[str]:
    """The texts of the Python blocks of a page."""
    return [block.text for block in blocks(page) if block.language == "python"]


class Reader:
    """Types the blocks of pages in a folder, one after the other; ends what still runs when the block ends.

    ``replaced`` are texts of the pages, such as addresses, with what stands for them in the test.
    """

    def __init__(self, folder: Path, warm: WarmDaemons, replaced: Mapping[str, str], nameserver: str) -> None:
        self._folder = folder
        self._warm = warm
        self._replaced = replaced
        self._running: list[tuple[Block, Path, Process]] = []
        stubs = folder / "stubs"
        stubs.mkdir()
        for name in STUBS:
            (stubs / name).write_text("#!/bin/sh\n")
            (stubs / name).chmod(0o755)
        path = os.pathsep.join([str(stubs), str(Path(sys.executable).parent), os.environ["PATH"]])
        self._environment = {"PATH": path, "NAMESRV_ADDR": nameserver, "PYTHONUNBUFFERED": "1", "HOME": str(folder)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, _, process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE_S)

    def read(self, page: str) -> None:
        """Run the blocks of a page; AssertionError for the first that fails, and for handlers that print nothing."""
        found = [block for block in blocks(page) if block.language in ("python", "sh") and not block.not_run]
        assert found, f"{page} has nothing to run"
        shell = "".join(block.text for block in found if block.language == "sh")
        for block in found:
            if block.language == "sh":
                self._type(block, ["bash", "-e", str(self._write(f"line-{block.line}.sh", block))])
            else:
                file = self._write(block.title or f"line-{block.line}.py", block)
                if not block.title or block.title not in shlex.split(shell, comments=True):
                    self._type(block, [sys.executable, str(file)])
        self.interrupt()

    def interrupt(self) -> None:
        """Press Ctrl-C in each program that runs, the last one first, once it has printed something."""
        while self._running:
            block, log, process = self._running[-1]
            until_true(partial(has_bytes, log), f"{where(block)} prints something")
            assert process.poll() is None, f"{where(block)} has ended\n{log.read_text()}"
            os.killpg(process.pid, signal.SIGINT)
            code = process.wait(DEADLINE_S)
            assert code in INTERRUPTED, f"{where(block)}: exit code {code}\n{log.read_text()}"
            self._running.pop()

    def _write(self, name: str, block: Block) -> Path:
        text = block.text
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        file = self._folder / name
        file.write_text(text, encoding="utf-8")
        return file

    def _type(self, block: Block, command: Sequence[str]) -> None:
        path = self._folder / f"line-{block.line}.log"
        with path.open("wb") as log:
            process = self._warm.start(command, log, self._folder, self._environment)
        if not block.ends:
            self._running.append((block, path, process))
            said = lambda: block.prints in path.read_text() or process.poll() is not None
            until_true(said, f"{where(block)} prints {block.prints}")
            return
        code = process.wait(DEADLINE_S)
        assert code == 0, f"{where(block)}: exit code {code}\n{path.read_text()}"


def has_bytes(file: Path) -> bool:
    """Whether the file is not empty."""
    return file.stat().st_size > 0


def where(block: Block) -> str:
    """A block's page and line, as editors take them."""
    return f"{block.page}:{block.line}"
