"""Samples the counters: those of the whole broker each second, each topic's and group's every ten seconds.

As in RocketMQ, an hour then has samples ten minutes apart, and a day one per hour (meter.py).
"""

import trio

from broker.meta.groups import Groups
from broker.meta.topics import Topics
from broker.observe.stats import BrokerStats
from broker.part import Part
from remoting.net.steps import run_slices

ROWS_INTERVAL_S = 10.0


class StatsSampler(Part):
    """See the module. The tables say which topics and groups exist: counters of others are forgotten."""

    tick_interval_ms = 1_000

    def __init__(self, stats: BrokerStats, topics: Topics, groups: Groups) -> None:
        self._stats = stats
        self._topics = topics
        self._groups = groups

    def tick(self) -> None:
        """Take the samples of the broker's rates."""
        self._stats.sample()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take the samples of topics and groups, until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(ROWS_INTERVAL_S)
            await run_slices(self._stats.sample_rows(self._topics.get, self._groups.get))
