"""Code blocks of the manual, and a reader who types them.

A block that cannot be run says why in a comment on the line before its fence, which readers of the page do not see:
``<!-- not run: needs Docker -->``. ``<!-- runs until Ctrl-C; prints ready -->`` marks a program that does not end by
itself, and what it has to print before the next block is typed. A program with ``title="handle.py"`` behind its
language is a file, which a shell block of the same page may start.
"""

import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Self

from scripts.daemons import ROOT, Process
from scripts.run_watcher import MARK
from tests.support.waiting import DEADLINE_S, until_true

BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n+)?```(?P<language>[a-z]*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
NOT_RUN, UNTIL_CTRL_C = "not run: ", "runs until Ctrl-C; prints "
# The address that the pages give to programs.
NAMESERVER = "127.0.0.1:9876"
# Commands that do nothing here: installations take minutes, and other tests try them.
STUBS = ("pip",)
# A nightly run installs packages and starts Spark, on a busy machine.
PROGRAM_TIMEOUT_S = 10 * DEADLINE_S
# Language of a block → what runs its file, and the file's ending.
PROGRAMS = {"sh": (["bash", "-e"], "sh"), "python": (["python"], "py"), "js": (["node"], "js")}
INTERRUPTED = (0, -signal.SIGINT, 128 + signal.SIGINT)

Start = Callable[[Sequence[str], IO[bytes], Path, Mapping[str, str]], Process]


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
    def prints(self) -> str:
        """What a program that runs until Ctrl-C has to print; empty for a program that ends by itself."""
        return self.mark.removeprefix(UNTIL_CTRL_C) if self.mark.startswith(UNTIL_CTRL_C) else ""


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


class Reader:
    """Types blocks in a folder, one after the other; ends what still runs when the ``with`` block ends.

    ``start`` starts a process. ``replaced`` are texts of the blocks, such as addresses, with what stands for them in
    the test; the folder stands for ``/tmp``. ``prime`` sends a message for a handler that runs until Ctrl-C: such a
    program is interrupted once it has printed what it has to. What a shell block has started runs until the end of the
    page. ``environment`` is added to the environment of the programs.
    """

    def __init__(
        self,
        folder: Path,
        start: Start,
        replaced: Mapping[str, str],
        prime: Callable[[], object] = lambda: None,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._folder = folder
        self._start = start
        self._replaced = {"/tmp/": f"{folder}/", **replaced}
        self._prime = prime
        self._started: list[Running] = []
        stubs = folder / "stubs"
        stubs.mkdir()
        for name in STUBS:
            (stubs / name).write_text("#!/bin/sh\n")
            (stubs / name).chmod(0o755)
        path = os.pathsep.join([str(stubs), str(Path(sys.executable).parent), os.environ["PATH"]])
        self._environment = {
            **{name: value for name, value in os.environ.items() if name.startswith(MARK)},
            "PATH": path,
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "NAMESRV_ADDR": replaced[NAMESERVER],
            "PYTHONUNBUFFERED": "1",
            **environment,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._started:
            if one.process.poll() is None:
                os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait(DEADLINE_S)

    def read(self, typed: Sequence[Block]) -> None:
        """Run the blocks of a page; AssertionError for the first that fails."""
        shell = shlex.split("".join(block.text for block in typed if block.language == "sh"), comments=True)
        running: list[Running] = []
        for block in typed:
            program, ending = PROGRAMS[block.language]
            file = self._write(block.title or f"line-{block.line}.{ending}", block)
            if block.title in shell:
                continue
            if block.prints and block.language != "sh":
                self._prime()
            one = self._begin(block, [*program, str(file)])
            if not block.prints:
                one.wait((0,))
                continue
            until_true(one.has_printed, f"{where(block)} prints {block.prints}")
            if block.language == "sh":
                running.append(one)
            else:
                one.interrupt()
        while running:
            running.pop().interrupt()

    def _write(self, name: str, block: Block) -> Path:
        text = block.text
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        file = self._folder / name
        file.write_text(text, encoding="utf-8")
        return file

    def _begin(self, block: Block, command: Sequence[str]) -> "Running":
        log = self._folder / f"line-{block.line}.log"
        with log.open("wb") as output:
            one = Running(block, log, self._start(command, output, self._folder, self._environment))
        self._started.append(one)
        return one


@dataclass(frozen=True)
class Running:
    """A block that was started; its output goes to ``log``."""

    block: Block
    log: Path
    process: Process

    def has_printed(self) -> bool:
        """Whether it has printed what its mark says; AssertionError when it has ended before."""
        if self.block.prints in self.log.read_text():
            return True
        self._still_runs()
        return False

    def _still_runs(self) -> None:
        assert self.process.poll() is None, f"{where(self.block)} has ended\n{self.log.read_text()}"

    def interrupt(self) -> None:
        """Press Ctrl-C. AssertionError when the program has ended before, or ends with an error."""
        self._still_runs()
        os.killpg(self.process.pid, signal.SIGINT)
        self.wait(INTERRUPTED)

    def wait(self, codes: Sequence[int]) -> None:
        """Wait for the end; AssertionError for another exit code."""
        code = self.process.wait(PROGRAM_TIMEOUT_S)
        assert code in codes, f"{where(self.block)}: exit code {code}\n{self.log.read_text()}"


def where(block: Block) -> str:
    """A block's page and line, as editors take them."""
    return f"{block.page}:{block.line}"
