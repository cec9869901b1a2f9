"""The official C++ client with an account in a file: what it may do works, what it may not is refused."""

import json
from pathlib import Path
from typing import cast

import pytest

from mqcommon.message.queue import MessageQueue
from remoting.protocol.bodies.group import SubscriptionGroupConfig
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.signature import Credentials
from sdk import Admin, testing
from tests.broker.security.accounts.acl_files import ADMIN, SECRET, account, write
from tests.interop import cpp
from tests.interop.test_cpp_signed import Where
from tests.support.cluster import Cluster
from tests.support.waiting import until

TOPIC, OTHER = "accounts-cpp", "others-cpp"
ROOT = Credentials("admin-account", SECRET)
TEXT = (
    ADMIN
    + account("cpp-producer", "topicPerms:", f"- {TOPIC}=PUB", "groupPerms:", "- cpp-producers=SUB")
    + account("cpp-consumer", "topicPerms:", f"- {TOPIC}=SUB", "groupPerms:", "- cpp-accounts=SUB")
)


def credentials(name: str, secret: str = SECRET) -> list[str]:
    return [name, secret, "ALIYUN"]


async def prepare(nameserver: str) -> None:
    async with Admin(nameserver, credentials=ROOT) as root:
        (addr,) = await root.brokers_of_cluster("DefaultCluster")
        for topic in (TOPIC, OTHER):
            await root.create_topic(addr, TopicConfig(topic, 2, 2))
        await root.create_group(addr, SubscriptionGroupConfig("cpp-accounts"))

        async def routed() -> bool:
            return {TOPIC, OTHER} <= set(await root.topic_list())

        await until(routed, "the topics have routes")


async def test_a_producer_and_a_consumer_with_their_rights_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner = json.dumps({"accessKey": ROOT.access_key, "secretKey": ROOT.secret_key})
    options = {
        "acl_enable": True,
        "acl_file": write(tmp_path / "conf" / "plain_acl.yml", TEXT),
        "innerClientAuthenticationCredentials": inner,
    }
    async with testing.Cluster(options=options) as made:
        await prepare(made.nameserver)
        cluster = cast(Cluster, Where(made.nameserver, tmp_path))
        allowed = {"how": "sync", "topic": TOPIC, "body": "allowed"}
        # To a refused send that waits, the client answers that there is no route, after many tries.
        others = [{"how": "oneway", "topic": topic, "body": "refused"} for topic in (TOPIC, OTHER)]
        sent = await cpp.send(cluster, [allowed, others[1]], credentials=credentials("cpp-producer"))
        assert sent[0] is not None
        await cpp.send(cluster, others, credentials=credentials("cpp-consumer"))
        await cpp.send(cluster, others, credentials=credentials("cpp-producer", "another secret"))
        for line in (
            "of user 'cpp-producer' at 127.0.0.1",
            f"No default permission for topic:{OTHER} (defaultTopicPerm: DENY",
            f"No default permission for topic:{TOPIC} (topicPerms: {TOPIC}=SUB",
            "Check signature failed for accessKey=cpp-producer",
        ):
            await until(lambda line=line: line in caplog.text, f"the audit has: {line}")
        async with cpp.pushing(cluster, "cpp-accounts", TOPIC, credentials=credentials("cpp-consumer")) as consumer:
            await until(lambda: consumer.bodies == ["allowed"], "the message is consumed")
        async with Admin(made.nameserver, credentials=ROOT) as root:
            offsets = [
                await root.max_offset(MessageQueue(topic, "broker-a", n)) for topic in (TOPIC, OTHER) for n in (0, 1)
            ]
            assert sorted(offsets) == [0, 0, 0, 1]
