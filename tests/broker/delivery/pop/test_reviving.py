"""Messages that come back: once each, whatever is wrong with others, with slaves, or with a topic."""

from random import Random

import trio
from trio.testing import MockClock

from remoting.protocol.requests.groups import SubscriptionGroupConfig
from tests.broker.delivery.pop.harness import Pops
from tests.broker.meta.support import options

RETRY, DEAD, SLAVE = "%RETRY%g_T", "%DLQ%g", "slave:1"
GUARDED = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "min_in_sync_replicas": 2}


def with_slave() -> Pops:
    return Pops(options(**GUARDED))


def slave_comes(pops: Pops) -> None:
    pops.ledger.connected(SLAVE, 0.0, "slave")
    pops.ledger.acked(SLAVE, pops.store.log.end)


async def test_messages_come_back_once_while_too_few_slaves_are_in_sync(autojump_clock: MockClock) -> None:
    pops = with_slave()
    async with pops.running("stop", Random(1)):
        slave_comes(pops)
        for body in (b"a", b"b"):
            pops.send(body, 0)
        assert len(pops.pop(32, 1_000)) == 2
        pops.ledger.gone(SLAVE)
        await trio.sleep(5)
        assert pops.bodies(RETRY) == [b"a", b"b"]
        assert pops.pop(32, 1_000) == [], "no check point is stored now"
        slave_comes(pops)
        assert [message.body for message in pops.pop(32, 60_000)] == [b"a", b"b"]


async def test_order_one_dead_letter_of_a_message_while_too_few_slaves_are_in_sync(autojump_clock: MockClock) -> None:
    pops = with_slave()
    async with pops.running("stop", Random(1)):
        slave_comes(pops)
        pops.meta.groups.put(SubscriptionGroupConfig("g", retry_max_times=0))
        pops.send(b"a", 0)
        assert len(pops.pop(32, 100, is_ordered=True)) == 1
        pops.ledger.gone(SLAVE)
        for _ in range(3):
            await trio.sleep(1)
            assert pops.pop(32, 100, is_ordered=True) == []
        assert pops.bodies(DEAD) == [b"a"]
