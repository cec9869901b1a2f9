"""The official C++ client with an account of plain_acl.yml: what it may do works, what it may not is refused."""

from pathlib import Path

import pytest

from skylark import Admin
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.remoting.protocol.signature import Credentials
from tests.broker.security.accounts.acl_files import ADMIN, SECRET, account, write
from tests.interop import cpp
from tests.support.daemons import in_threads
from tests.support.waiting import until

TOPIC, OTHER = "accounts-cpp", "others-cpp"
ROOT = Credentials("admin-account", SECRET)
ACCOUNTS = ADMIN + account("producer-1", "topicPerms:", f"- {TOPIC}=PUB") + account(
    "consumer-1", "topicPerms:", f"- {TOPIC}=SUB", "groupPerms:", "- cpp-accounts=SUB"
)  # fmt: skip


async def prepare(nameserver: str) -> None:
    async with Admin(nameserver, credentials=ROOT) as root:
        (addr,) = await root.brokers_of_cluster("DefaultCluster")
        for topic in (TOPIC, OTHER):
            await root.create_topic(addr, TopicConfig(topic, 2, 2))
        await root.create_group(addr, SubscriptionGroupConfig("cpp-accounts"))

        async def routed() -> bool:
            return {TOPIC, OTHER} <= set(await root.topic_list())

        await until(routed, "the topics have routes")


async def test_a_producer_and_a_consumer_with_their_permissions_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"acl_enable": True, "acl_file": write(tmp_path / "plain_acl.yml", ACCOUNTS)}
    async with in_threads(tmp_path, options=options) as cluster:
        await prepare(cluster.nameserver)
        allowed = {"how": "sync", "topic": TOPIC, "body": "allowed"}
        others = [{"how": "oneway", "topic": topic, "body": "refused"} for topic in (TOPIC, OTHER)]
        producer, consumer = (["producer-1", SECRET, "ALIYUN"], ["consumer-1", SECRET, "ALIYUN"])
        assert (await cpp.send(cluster, [allowed, others[1]], credentials=producer))[0] is not None
        await cpp.send(cluster, others, credentials=consumer)
        await cpp.send(cluster, others, credentials=["producer-1", "another secret", "ALIYUN"])
        for line in ("No default permission for", "Check signature failed for accessKey=producer-1"):
            await until(lambda line=line: line in caplog.text, f"the audit has: {line}")
        async with cpp.pushing(cluster, "cpp-accounts", TOPIC, credentials=consumer) as pushed:
            await until(lambda: pushed.bodies == ["allowed"], "the message is consumed")
        async with Admin(cluster.nameserver, credentials=ROOT) as root:
            offsets = [
                await root.max_offset(MessageQueue(topic, "broker-a", n)) for topic in (TOPIC, OTHER) for n in (0, 1)
            ]
            assert sorted(offsets) == [0, 0, 0, 1]
