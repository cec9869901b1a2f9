"""The rules in force: read again every few seconds, and changed by administrators.

Files are read and written in a worker thread, one after another. A file that cannot be used is logged once, and what
was read of it before stays in force.
"""

import logging
from collections.abc import Callable

import trio

from broker.security.accounts.edits import AccountDocument
from broker.security.accounts.files import AccountFiles
from broker.security.accounts.rules import Rules
from mqcommon.clock import Clock
from mqcommon.errors import ConfigError, UserError

logger = logging.getLogger(__name__)

# As RocketMQ's brokers look at theirs.
RELOAD_INTERVAL_S = 5.0


class LiveRules:
    """``rules`` are those in force. ConfigError when the files cannot be used at first."""

    def __init__(self, files: AccountFiles, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._lock = trio.Lock()
        self._problems: list[str] = []
        if problems := files.refresh():
            raise ConfigError(problems[0])
        self.rules: Rules = files.rules
        self._log()

    @property
    def path(self) -> str:
        """The file of new accounts."""
        return self._files.path

    async def run(self) -> None:
        """Read the files again every few seconds, until cancelled."""
        while True:
            await trio.sleep(RELOAD_INTERVAL_S)
            await self.reload()

    async def reload(self) -> None:
        """Read the files again, and put in force what can be used."""
        async with self._lock:
            await self._refresh()

    async def change(self, path: str, edit: Callable[[AccountDocument], None]) -> None:
        """Change a file, and put it in force. UserError when it cannot be changed so."""
        async with self._lock:
            now_ms = self._clock.now_ms()
            await trio.to_thread.run_sync(self._files.change, path, edit, now_ms)
            await self._refresh()

    async def _refresh(self) -> None:
        try:
            problems = await trio.to_thread.run_sync(self._files.refresh)
        except UserError as error:
            problems = [str(error)]
        for problem in problems:
            if problem not in self._problems:
                logger.error("the accounts that were read before stay in force: %s", problem)
        self._problems = problems
        if self._files.rules is not self.rules:
            self.rules = self._files.rules
            self._log()

    def _log(self) -> None:
        files = self.rules.files
        logger.info("%d accounts in force, of %s", len(self.rules.accounts), ", ".join(file.path for file in files))
        for file in files:
            if file.white.texts:
                logger.warning("clients at these addresses are not asked who they are (%s): %s", file.path,
                               ", ".join(file.white.texts))  # fmt: skip
