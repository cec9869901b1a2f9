"""Runs `mqadmin doctor` from time to time, for the figure beside the console's Doctor tab.

The doctor asks much more than a round of the collector, so it runs seldom: every INTERVAL_S, when a broker goes or
comes back, and never for more than a twentieth of the time. The doctor's page runs it anew, with the visitor's
credentials.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from skylark.mqcommon.errors import SkylarkError
from skylark.mqconsole.watching.collector import PATIENCE, Collector
from skylark.sdk.admin.failures import explain
from skylark.sdk.admin.reports.findings import DoctorFinding
from skylark.sdk.runtime import survived

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 300.0
#: The delay of the first run, so that a console that has just started shows its pages first.
FIRST_S: Final = 20.0


class Checkup:
    """The periodic runs of the doctor: while ``run`` runs, `findings` has the last answer of ``ask``."""

    def __init__(self, collector: Collector, ask: Callable[[], Awaitable[Sequence[DoctorFinding]]]) -> None:
        self._collector = collector
        self._ask = ask
        self.findings: Sequence[DoctorFinding] = ()
        self._error = ""
        # The brokers that were away at the last run.
        self._away: set[str] = self._away_now()

    async def run(self) -> None:
        """Ask until cancelled."""
        wait_s = FIRST_S
        while True:
            with trio.move_on_after(wait_s):
                await self._other_brokers()
            self._away = self._away_now()
            began_s = trio.current_time()
            with survived("a checkup"):
                await self._examine()
            took_s = trio.current_time() - began_s
            await trio.sleep(PATIENCE * took_s)
            wait_s = max(INTERVAL_S - PATIENCE * took_s, 0.0)

    async def _examine(self) -> None:
        try:
            self.findings = await self._ask()
        except SkylarkError as error:
            # Keep the last findings.
            if not self._error:
                logger.warning("the doctor cannot look: %s", explain(error))
            self._error = explain(error)
        else:
            self._error = ""

    def _away_now(self) -> set[str]:
        return {one.title for one in self._collector.snapshot.away}

    async def _other_brokers(self) -> None:
        """Return when other brokers are away than at the last run."""
        while self._away_now() == self._away:
            await self._collector.newer_than(self._collector.snapshot.version)
