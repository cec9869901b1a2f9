"""The official C++ client and a DLedger group whose leader is killed: it goes on at the next one.

The client asks for routes every 30 s. Until then its sends fail, as they do with RocketMQ's groups.
"""

from pathlib import Path

import pytest
import trio

from scripts.controller_set import running
from scripts.dledger_set import DLedgerSet
from skylark import Admin
from tests.interop import cpp
from tests.support.daemons import SMALL, Cluster
from tests.support.rounds import report
from tests.support.waiting import until

TOPIC = "cpp-switched"
PAUSE_S = 0.1
# Sends until a route is asked for again, and then some.
SENDS = [{"how": "sync", "topic": TOPIC, "body": f"{number:04}"} for number in range(int(50 / PAUSE_S))]
LAST = 50


@pytest.mark.nightly
async def test_its_producer_and_consumer_go_on_at_the_next_leader(tmp_path: Path) -> None:
    at = DLedgerSet(tmp_path, options=SMALL)
    async with running(at), Admin(at.nameserver) as admin:
        leader = await at.until_in_sync(admin)
        await at.make_topic(admin, TOPIC)
        cluster = Cluster(tmp_path, [at.namesrv], at.brokers)
        results: list[cpp.Described | None] = []

        async def produce() -> None:
            results.extend(await cpp.send(cluster, SENDS, pause_s=PAUSE_S, may_fail=True))

        async with cpp.pushing(cluster, "cpp", TOPIC) as consumer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce)
                await until(lambda: len(consumer.messages) > LAST, "the consumer gets messages")
                leader.kill()
                await at.until_master(admin, but=leader)
                await at.start_broker(leader)
            acked = {send["body"] for send, result in zip(SENDS, results, strict=True) if result}
            assert [result and result["status"] for result in results[-LAST:]] == ["OK"] * LAST
            await until(lambda: acked <= set(consumer.bodies), "the consumer gets what was acknowledged", 60)
            stored = {message.body.decode() for message in await cpp.stored(cluster, TOPIC)}
            report(1, acknowledged=len(acked), lost=len(acked - stored))
            assert acked <= stored
            # All that it got was committed, so the next leader has it.
            await until(
                lambda: set(consumer.bodies) == stored, "the consumer gets what is stored, and nothing else", 60
            )
