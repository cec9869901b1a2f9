"""The official C++ client as a user of a broker with policies: what it may do works, what it may not is refused."""

import json
from pathlib import Path

import pytest

from skylark import Admin
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.remoting.protocol.signature import Credentials
from tests.interop import cpp
from tests.support.daemons import in_threads
from tests.support.waiting import until

TOPIC, OTHER = "users-cpp", "others-cpp"
ROOT = Credentials("root", "secret-of-root")
GUARDED = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": "secret-of-root"}),
}
ALLOWED = {
    "producer": [(f"Topic:{TOPIC}", "Pub")],
    "consumer": [(f"Topic:{TOPIC}", "Sub"), ("Group:cpp-*", "Sub")],
}


def credentials(name: str) -> list[str]:
    return [name, f"secret-of-{name}", "ALIYUN"]


async def prepare(nameserver: str) -> None:
    async with Admin(nameserver, credentials=ROOT) as root:
        (addr,) = await root.brokers_of_cluster("DefaultCluster")
        for name, entries in ALLOWED.items():
            await root.create_user(addr, UserInfo(name, f"secret-of-{name}"))
            found = [PolicyEntryInfo(resource, [action], None, "Allow") for resource, action in entries]
            await root.create_acl(addr, AclInfo(f"User:{name}", [PolicyInfo("Custom", found)]))
        for topic in (TOPIC, OTHER):
            await root.create_topic(addr, TopicConfig(topic, 2, 2))
        await root.create_group(addr, SubscriptionGroupConfig("cpp-users"))

        async def routed() -> bool:
            known = await root.topic_list()
            return {TOPIC, OTHER} <= set(known)

        await until(routed, "the topics have routes")


async def test_a_producer_and_a_consumer_with_their_rights_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_threads(tmp_path, options=GUARDED) as cluster:
        await prepare(cluster.nameserver)
        allowed = {"how": "sync", "topic": TOPIC, "body": "allowed"}
        # To a refused send that waits, the client answers that there is no route, after many tries.
        others = [{"how": "oneway", "topic": topic, "body": "refused"} for topic in (TOPIC, OTHER)]
        assert (await cpp.send(cluster, [allowed, others[1]], credentials=credentials("producer")))[0] is not None
        await cpp.send(cluster, others, credentials=credentials("consumer"))
        await cpp.send(cluster, others, credentials=["producer", "another secret", "ALIYUN"])
        for line in (
            f"User:producer has no permission to access Topic:{OTHER}",
            f"User:consumer has no permission to access Topic:{TOPIC}",
            "of user 'producer' at 127.0.0.1",
            "check signature failed.",
        ):
            await until(lambda line=line: line in caplog.text, f"the audit has: {line}")
        async with cpp.pushing(cluster, "cpp-users", TOPIC, credentials=credentials("consumer")) as consumer:
            await until(lambda: consumer.bodies == ["allowed"], "the message is consumed")
        async with Admin(cluster.nameserver, credentials=ROOT) as root:
            offsets = [
                await root.max_offset(MessageQueue(topic, "broker-a", n)) for topic in (TOPIC, OTHER) for n in (0, 1)
            ]
            assert sorted(offsets) == [0, 0, 0, 1]
