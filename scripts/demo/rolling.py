"""The quickstart with --rolling: each process of a cluster is replaced under load, as Kubernetes replaces pods.

scripts/rolling has the cluster and the counts. The exit code is 0 only when no send failed and nothing acknowledged is
lost.
"""

from functools import partial
from pathlib import Path

import trio

from scripts.demo.options import Options
from scripts.demo.report import Differs, first_of
from scripts.demo.stages import Stages
from scripts.rolling.clusters import MODES
from scripts.rolling.update import Plan, Row, roll, table

# Each task waits this long between its sends: sends are many, and yet all messages can be read in seconds.
PAUSE_S = 0.5
QUIET_SENDS = 2_000
ALL_MODES = "all"


class RollingDemo:
    """One run, with its data in ``home``."""

    def __init__(self, options: Options, home: Path) -> None:
        self._home = home
        self._modes = MODES if options.mode == ALL_MODES else (options.mode,)
        self._plan = Plan(options.rounds, options.tasks, PAUSE_S, options.down_s, QUIET_SENDS)
        self._stages = Stages()

    def run(self) -> None:
        """Update the modes in order. Raises Differs, DaemonFailed or SkylarkError when one of them fails."""
        rows = []
        for number, mode in enumerate(self._modes, 1):
            with self._stages.stage(f"{number}. {mode}: each process replaced in turn"):
                rows.append(self._update(mode))
        print(f"\n{table(rows)}")
        self._stages.show()
        for row in rows:
            if problems := row.figures.problems():
                raise Differs(f"{row.mode}: {problems}")

    def _update(self, mode: str) -> Row:
        home = self._home / mode
        home.mkdir()
        try:
            return trio.run(partial(roll, mode, home, self._plan, lambda text: print(f"  {text}", flush=True)))
        except BaseExceptionGroup as group:
            raise first_of(group) from None
