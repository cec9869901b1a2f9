"""Clients with credentials, without, and with wrong ones at a cluster with users and policies, and its slaves."""

import json

import pytest
import trio

from skylark import (
    Admin,
    ConsumeFrom,
    Credentials,
    Message,
    MessageExt,
    Problem,
    Producer,
    PushConsumer,
    RetryPolicy,
    SimpleConsumer,
    TopicConfig,
)
from skylark.mqcommon.errors import BrokerError, SendFailed
from skylark.remoting.protocol.requests.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from skylark.sdk.consumer import read_retry
from skylark.sdk.testing import Cluster
from tests.support.in_process import until_known
from tests.support.waiting import DEADLINE_S, until

SECRET = "a secret of the super user"
ROOT, APP = Credentials("root", SECRET), Credentials("app", "a secret of the app")
OPTIONS = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps({"username": "root", "password": SECRET}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "inner", "secretKey": "a secret of brokers"}),
    "haSharedSecret": "a secret of the link",
    "brokerRole": "SYNC_MASTER",
}


def allowing(*rights: tuple[str, str]) -> AclInfo:
    entries = [PolicyEntryInfo(resource, [action], None, "Allow") for resource, action in rights]
    return AclInfo("User:app", [PolicyInfo("Custom", entries)])


async def test_an_application_does_what_its_user_may(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(read_retry, "REFUSED_S", 0.05)
    monkeypatch.setattr("skylark.sdk.client.HEARTBEAT_RETRY_S", 0.05)
    got: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        got.append(message.body)

    async with Cluster(slaves=1, options=OPTIONS) as cluster, Admin(cluster.nameserver, credentials=ROOT) as root:
        at, broker = cluster.nameserver, cluster.brokers[0].address
        await root.create_topic(broker, TopicConfig("T", 2, 2))
        await root.create_user(broker, UserInfo("app", "a secret of the app"))
        await root.create_acl(broker, allowing(("Topic:T", "Pub")))
        for who, why in (
            (None, "username cannot be null"),
            (Credentials("app", "x"), "check signature failed"),
            (Credentials("nobody", "x"), "User:nobody is not found"),
        ):
            with pytest.raises(BrokerError, match=why):
                async with Producer(at, credentials=who):
                    raise AssertionError("a producer that nobody lets in starts")
            async with Producer(at, credentials=who, start_timeout_ms=None) as producer:
                with pytest.raises(SendFailed, match=why):
                    await producer.send(Message("T", b"refused"))
        async with Producer(at, credentials=APP) as producer:
            # Acknowledged by the slave, too, which has proved that it is one.
            await producer.send(Message("T", b"one"))
        wanted = {"group": "g", "subscriptions": {"T": "*"}, "credentials": APP}
        for kind in (PushConsumer, SimpleConsumer):
            with pytest.raises(BrokerError, match="User:app has no permission"):
                async with kind(at, **wanted):
                    raise AssertionError("a consumer that nobody lets in starts")
        problems: list[Problem] = []
        async with PushConsumer(
            at,
            **wanted,
            handler=handle,
            consume_from=ConsumeFrom.FIRST_OFFSET,
            start_timeout_ms=None,
            on_problem=problems.append,
        ) as consumer:
            await until(lambda: "refuses the heartbeats of this client" in caplog.text, "it says that it is refused")
            assert got == []
            await until(lambda: f"heartbeats to {broker}" in {one.what for one in problems}, "the program is told")
            assert consumer.problem is not None
            await root.update_acl(broker, allowing(("Topic:T", "Sub"), ("Group:g", "Sub")))
            with trio.fail_after(DEADLINE_S):
                await until(lambda: got == [b"one"], "it is let in")
                await until(lambda: consumer.problem is None, "nothing is wrong any more")
        async with Admin(at) as nobody:
            with pytest.raises(BrokerError, match="username cannot be null"):
                await nobody.broker_config(broker)


async def test_a_user_with_these_rights_sends_dead_letters_again() -> None:
    def fail(message: MessageExt) -> None:
        raise ValueError("no tea")

    options = {name: value for name, value in OPTIONS.items() if name != "brokerRole"}
    async with Cluster(options=options) as cluster, Admin(cluster.nameserver, credentials=ROOT) as root:
        at, broker = cluster.nameserver, cluster.brokers[0].address
        await root.create_topic(broker, TopicConfig("T", 1, 1))
        await until_known(root, "T")
        async with Producer(at, credentials=ROOT) as producer:
            sent = await producer.send(Message("T", b"tea"))
        wanted = {"group": "g", "subscriptions": {"T": "*"}, "credentials": ROOT}
        retry = RetryPolicy(dead_letter_on=Exception)
        first = ConsumeFrom.FIRST_OFFSET
        async with PushConsumer(at, **wanted, handler=fail, consume_from=first, retry=retry) as consumer:
            await until(lambda: consumer.failed == 1 and consumer.cached == 0, "the message is a dead letter")
        await until_known(root, "%DLQ%g")
        await root.create_user(broker, UserInfo("app", "a secret of the app"))
        rights = [
            ("Group:g", "Sub"), ("Group:g", "Get"), ("Topic:%DLQ%g", "Sub"), ("Group:TOOLS_CONSUMER", "Sub"),
            ("Topic:rmq_sys_DLQ_RESENT", "Sub"),
        ]  # fmt: skip
        await root.create_acl(broker, allowing(*rights))
        async with Admin(at, credentials=APP) as admin:
            with pytest.raises(BrokerError, match=r"no permission to access Topic:rmq_sys_DLQ_RESENT") as refused:
                await admin.resend_dead_letters("g", ids=[sent.msg_id])
            assert "the next resend sends it once more" in str(refused.value.__notes__)
            await root.update_acl(broker, allowing(*rights, ("Topic:rmq_sys_DLQ_RESENT", "Pub")))
            assert (await admin.resend_dead_letters("g", ids=[sent.msg_id])).done == 1
            assert (await admin.resend_dead_letters("g", ids=[sent.msg_id])).skipped == 1
