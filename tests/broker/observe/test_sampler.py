"""The counters are sampled while the broker runs."""

import trio
import trio.testing

from broker.observe.sampler import StatsSampler
from broker.observe.stats import BrokerStats
from tests.broker.meta.support import MetadataDir


async def test_counters_of_a_topic_that_was_removed_elsewhere_are_forgotten(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    meta = MetadataDir()
    stats = BrokerStats(meta.clock)
    meta.topics.create_on_send("T", "TBW102", 1)
    stats.put("T", 1, 1)
    await nursery.start(StatsSampler(stats, meta.topics, meta.groups).run)
    await trio.sleep(25)
    assert stats.view("TOPIC_PUT_NUMS", "T") is not None
    meta.topics.delete("T")
    await trio.sleep(10)
    assert stats.view("TOPIC_PUT_NUMS", "T") is None
