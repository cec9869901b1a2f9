"""Checks all files of a store but the log, round after round: queues, the index, metadata, small files, entries.

Queues and index are made again from the log, and of the rest the broker has the contents in memory while it runs. Only
the entries of a DLedger group may need another member.
Neighbours: queue_files.py, index_files.py, small_files.py, entry_files.py (the checks); scrub.py (when, and how fast).
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain
from random import Random
from typing import NamedTuple, Protocol

import trio
from trio.lowlevel import checkpoint

from skylark.mqcommon.errors import DiskFull

logger = logging.getLogger(__name__)

WRITE_SUMS_S = 600.0


class CheckedFile(NamedTuple):
    """A file, or a part of a large one, was checked, at the cost of reading ``size`` bytes.

    ``problem``: what is wrong, "" if nothing is; ``is_mended``: whether the file is right again.
    """

    path: str
    size: int
    problem: str = ""
    is_mended: bool = False


#: Checks a file, and mends it.
Job = Callable[[], Awaitable[CheckedFile]]


class FileKind(Protocol):
    """The check of all files of one kind."""

    def jobs(self, random: Random) -> Iterator[Job]:
        """The checks of the files that there are now, in an order that is another one in each round."""


class OtherFiles:
    """The checks of one store, one after another."""

    def __init__(
        self, kinds: Sequence[FileKind], random: Random, write_sums: Callable[[], Awaitable[None]] = checkpoint
    ) -> None:
        """``write_sums`` writes the sums of queues and index."""
        self._kinds = kinds
        self._random = random
        self._jobs: Iterator[Job] | None = None
        self._write_sums = write_sums
        self._next_write = 0.0

    async def check_next(self) -> CheckedFile | None:
        """Check the next file, or the next part of a large one, and mend it; None at the end of a round."""
        await self._write_sums_often()
        if self._jobs is None:
            self._jobs = chain.from_iterable(kind.jobs(self._random) for kind in self._kinds)
        job = next(self._jobs, None)
        if job is None:
            self._jobs = None
            return None
        return await job()

    async def _write_sums_often(self) -> None:
        """A stop writes the sums, too; after a kill, what has none is compared with the log."""
        now = trio.current_time()
        if now < self._next_write:
            return
        self._next_write = now + WRITE_SUMS_S
        try:
            await self._write_sums()
        except (OSError, DiskFull) as error:
            logger.warning("the sums of queues and index are not written: %s", error)
