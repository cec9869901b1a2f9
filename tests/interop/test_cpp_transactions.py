"""Halves of the official C++ client wait, and a Skylark producer of the group answers for them.

The wheel exports no transaction producer, so the test sets the properties of a half as that one does: the client then
sends it in the same way.
"""

from pathlib import Path

from skylark import MessageExt, TransactionProducer, TransactionState
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.interop import cpp
from tests.support.daemons import in_threads, make_topic
from tests.support.waiting import until

TOPIC = "from-cpp"
GROUP = "cpp-producers"
OPTIONS = {"transactionTimeOut": 100, "transactionCheckInterval": 100, "transactionCheckMax": 10_000}


async def test_halves_are_seen_when_a_member_of_the_group_says_so(tmp_path: Path) -> None:
    half = {"TRAN_MSG": "true", "PGROUP": GROUP}
    sends = [
        {"how": "sync", "topic": TOPIC, "body": body, "tags": "a", "keys": "k", "properties": properties}
        for body, properties in (("yes", half), ("no", half), ("plain", {"n": "1"}))
    ]

    def check(message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT if message.body == b"yes" else TransactionState.ROLLBACK

    async with in_threads(tmp_path, options=OPTIONS) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 4, 4))
        results = await cpp.send(cluster, sends)
        assert [result and result["status"] for result in results] == ["OK"] * 3
        assert [message.body for message in await cpp.stored(cluster, TOPIC)] == [b"plain"]
        async with TransactionProducer(cluster.nameserver, group=GROUP, checker=check, topics=[TOPIC]):

            async def committed() -> bool:
                seen = [message["body"] for message in await cpp.pull(cluster, TOPIC)]
                assert set(seen) <= {"yes", "plain"}
                return sorted(seen) == ["plain", "yes"]

            await until(committed, "the C++ consumer sees what was committed")
