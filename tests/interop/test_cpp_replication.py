"""The official C++ client and a broker set: its sends wait for the slave, and it reads on from the slave."""

from pathlib import Path

from tests.interop import cpp
from tests.support.daemons import broker_set

TOPIC = "cpp-set"


async def test_it_sends_to_a_sync_master_and_pulls_from_the_slave_when_the_master_is_dead(tmp_path: Path) -> None:
    sends = [{"how": "sync", "topic": TOPIC, "body": f"{number:03}", "tags": "TagA"} for number in range(100)]
    async with broker_set(tmp_path) as at:
        await at.make_topic(TOPIC)
        results = await cpp.send(at.cluster, sends)
        assert {result["status"] for result in results if result} == {"OK"} and len(results) == 100
        from_master = await cpp.pull(at.cluster, TOPIC)
        assert [message["body"] for message in from_master] == [send["body"] for send in sends]
        at.master.kill()
        assert await cpp.pull(at.cluster, TOPIC) == from_master
