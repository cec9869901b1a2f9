"""Who may do what, through real sockets: users, policies, white lists, and what changes while clients are connected."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import FLAG_ONEWAY, Command
from skylark.remoting.protocol.dialect import encode_body
from skylark.remoting.protocol.requests.auth import (
    AUTH_CREATE_ACL,
    AUTH_CREATE_USER,
    AUTH_DELETE_USER,
    AUTH_LIST_USER,
    AUTH_UPDATE_USER,
    AclInfo,
    UserInfo,
)
from skylark.remoting.protocol.requests.brokers import UPDATE_BROKER_CONFIG
from skylark.remoting.protocol.requests.consuming import CONSUMER_SEND_MSG_BACK
from skylark.remoting.protocol.requests.topics import DELETE_TOPIC_IN_BROKER
from skylark.remoting.protocol.requests.transactions import END_TRANSACTION
from tests.broker.running import pull_request, running, send_request
from tests.broker.security.users.rows import SECRET, acl, entry, user
from tests.broker.security.wire import REQUESTS as COMMON_REQUESTS
from tests.broker.security.wire import Wire, connected
from tests.support.memory_files import MemoryFiles

OPTIONS = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": SECRET}),
}


@asynccontextmanager
async def guarded(fs: MemoryFiles | None = None, **options: Any) -> AsyncIterator[Wire]:
    async with running(fs, **{**OPTIONS, **options}) as (_, addr), connected(addr) as wire:
        yield wire


async def create(wire: Wire, *users: UserInfo) -> None:
    for each in users:
        request = Command(AUTH_CREATE_USER.code, {"username": each.username}, encode_body(each))
        assert (await wire.ask(request, "root")).code == ResponseCode.SUCCESS


async def allow(wire: Wire, *rows: AclInfo) -> None:
    for each in rows:
        request = Command(AUTH_CREATE_ACL.code, {"subject": each.subject}, encode_body(each))
        answer = await wire.ask(request, "root")
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def update(wire: Wire, name: str, **changes: Any) -> None:
    body = encode_body(UserInfo(name, **changes))
    assert (await wire.ask(Command(AUTH_UPDATE_USER.code, {"username": name}, body), "root")).code == 0


REQUESTS = COMMON_REQUESTS | {
    "pull retry": lambda: pull_request("%RETRY%group", 0),
    "delete topic": lambda: Command(DELETE_TOPIC_IN_BROKER.code, {"topic": "T"}),
    "change config": lambda: Command(UPDATE_BROKER_CONFIG.code, None, b"longPollingEnable=true"),
    "list users": lambda: Command(AUTH_LIST_USER.code),
}
CONSUMER = {"give back", "pull", "pull retry", "commit", "heartbeat", "max offset"}
# By the policies of a normal user: what is allowed; everything else is not.
TABLE: dict[str, tuple[AclInfo | None, set[str]]] = {
    "nobody": (None, set()),
    "publisher": (acl("publisher", entry("Topic:T", "Pub")), {"send"}),
    "consumer": (acl("consumer", entry("Topic:T", "Sub"), entry("Group:group", "Sub")), CONSUMER),
    "only topic": (acl("only_topic", entry("Topic:*", "Sub")), {"max offset"}),
    "only group": (acl("only_group", entry("Group:gr*", "Sub")), {"give back", "pull retry"}),
    "denied": (acl("denied", entry("Topic:T", "All", "Deny"), entry("*", "All")), set(REQUESTS) - {
        "send", "pull", "commit", "heartbeat", "max offset", "create topic", "delete topic",
    }),
    "keeper": (acl("keeper", entry("Topic:*", "Create,Delete"), entry("Group:*", "Create")), {
        "create topic", "delete topic", "create group",
    }),
    "watcher": (acl("watcher", entry("Cluster:*", "Get")), {"broker config", "list users"}),
    "other cluster": (acl("other_cluster", entry("Cluster:Other", "All")), set()),
    "operator": (acl("operator", entry("Cluster:DefaultCluster", "All")), {
        "broker config", "change config", "list users",
    }),
    "elsewhere": (acl("elsewhere", entry("*", "All", "Allow", "10.0.0.0/8")), set()),
    "here": (acl("here", entry("*", "All", "Allow", "127.0.0.0/8")), set(REQUESTS)),
    "by default": (acl("by_default", default=(entry("Topic:*", "Pub"),)), {"send"}),
}  # fmt: skip


async def test_the_truth_table_of_policies() -> None:
    async with guarded() as wire:
        await create(wire, user("boss", "Super"), *(user(case.replace(" ", "_")) for case in TABLE))
        await allow(wire, *(rows for rows, _ in TABLE.values() if rows is not None))
        for what, make in REQUESTS.items():
            assert (await wire.ask(make(), "boss")).code != ResponseCode.NO_PERMISSION, what
            for case, (_, allowed) in TABLE.items():
                name = case.replace(" ", "_")
                answer = await wire.ask(make(), name)
                assert (answer.code != ResponseCode.NO_PERMISSION) == (what in allowed), (case, what, answer)
                if what not in allowed:
                    assert answer.remark is not None
                    assert answer.remark.startswith(f"User:{name} has no permission to access ")


async def test_who_is_nobody_may_do_nothing() -> None:
    async with guarded() as wire:
        await create(wire, user("off", "Super", "disable"))
        for what, make in REQUESTS.items():
            for name, secret, remark in (
                ("", "", "username cannot be null"),
                ("who", SECRET, "User:who is not found."),
                ("off", SECRET, "User:off is disabled."),
                ("root", "another-secret", "check signature failed."),
            ):
                answer = await wire.ask(make(), name, secret)
                assert answer.code == ResponseCode.NO_PERMISSION, what
                assert answer.remark is not None
                assert answer.remark.startswith(remark), what


async def test_only_authentication_lets_every_user_do_everything_but_rule_super_users() -> None:
    async with guarded(authorization_enabled=False) as wire:
        await create(wire, user("anna"))
        for what, make in REQUESTS.items():
            assert (await wire.ask(make(), "anna")).code != ResponseCode.NO_PERMISSION, what
            assert (await wire.ask(make())).code == ResponseCode.NO_PERMISSION, what
        for code, body in (
            (AUTH_CREATE_USER.code, user("new", "Super")),
            (AUTH_UPDATE_USER.code, user("anna", "Super")),
            (AUTH_UPDATE_USER.code, UserInfo("root", "a-new-secret")),
        ):
            answer = await wire.ask(Command(code, {"username": body.username}, encode_body(body)), "anna")
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "by super user" in (answer.remark or "")
        answer = await wire.ask(Command(AUTH_DELETE_USER.code, {"username": "root"}), "anna")
        assert answer.remark == "The super user can only be delete by super user"


async def test_changes_count_from_the_next_request_on() -> None:
    async with guarded() as wire:
        await create(wire, user("anna"))
        send = REQUESTS["send"]
        await allow(wire, acl("anna", entry("Topic:T", "Pub")))
        assert (await wire.ask(send(), "anna")).code == ResponseCode.SUCCESS
        await allow(wire, acl("anna", entry("Topic:T", "Pub", "Deny")))
        answer = await wire.ask(send(), "anna")
        assert answer.remark == (
            "User:anna has no permission to access Topic:T from 127.0.0.1, the decision is deny: Topic:T Pub Deny."
            " It needs Pub."
        )
        await allow(wire, acl("anna", entry("Topic:T", "Pub")))
        await update(wire, "anna", user_status="disable")
        assert (await wire.ask(send(), "anna")).remark == "User:anna is disabled."
        await update(wire, "anna", user_status="enable", password="changed")
        assert (await wire.ask(send(), "anna")).remark == "check signature failed."
        assert (await wire.ask(send(), "anna", "changed")).code == ResponseCode.SUCCESS
        await update(wire, "anna", user_type="Super")
        assert (await wire.ask(REQUESTS["change config"](), "anna", "changed")).code == ResponseCode.SUCCESS
        request = Command(AUTH_DELETE_USER.code, {"username": "anna"})
        assert (await wire.ask(request, "root")).code == ResponseCode.SUCCESS
        assert (await wire.ask(send(), "anna", "changed")).remark == "User:anna is not found."
        await create(wire, user("anna"))
        answer = await wire.ask(send(), "anna")
        assert "no matched policies" in (answer.remark or ""), "the policies went with the user"


@pytest.mark.parametrize(
    ("lists", "unsigned", "signed"),
    [
        ({"authentication_whitelist": "310"}, False, False),
        ({"authorization_whitelist": "310"}, False, True),
        ({"authentication_whitelist": "310, 11", "authorization_whitelist": "310"}, True, True),
    ],
)
async def test_white_lists(lists: dict[str, str], unsigned: bool, signed: bool) -> None:
    async with guarded(**lists) as wire:
        await create(wire, user("anna"))
        assert ((await wire.ask(REQUESTS["send"]())).code == ResponseCode.SUCCESS) == unsigned
        assert ((await wire.ask(REQUESTS["send"](), "anna")).code == ResponseCode.SUCCESS) == signed
        assert (await wire.ask(REQUESTS["pull"](), "anna")).code == ResponseCode.NO_PERMISSION


async def test_without_the_options_nothing_is_checked() -> None:
    async with guarded(authentication_enabled=False, authorization_enabled=False) as wire:
        await create(wire, user("anna"))
        await allow(wire, acl("anna", entry("*", "All", "Deny")))
        for make in REQUESTS.values():
            assert (await wire.ask(make(), "anna", "wrong")).code != ResponseCode.NO_PERMISSION
            assert (await wire.ask(make())).code != ResponseCode.NO_PERMISSION


async def test_a_restart_keeps_users_and_policies() -> None:
    fs = MemoryFiles()
    async with guarded(fs) as wire:
        await create(wire, user("anna"))
        await allow(wire, acl("anna", entry("Topic:T", "Pub")))
        await update(wire, "root", password="changed")
    async with guarded(fs) as wire:
        assert (await wire.ask(REQUESTS["send"](), "anna")).code == ResponseCode.SUCCESS
        assert (await wire.ask(REQUESTS["pull"](), "anna")).code == ResponseCode.NO_PERMISSION
        assert (await wire.ask(REQUESTS["broker config"](), "root", "changed")).code == ResponseCode.SUCCESS


async def test_oneway_requests_are_checked_too() -> None:
    async with guarded() as wire:
        assert (await wire.ask(REQUESTS["send"](), "root")).code == ResponseCode.SUCCESS
        oneway = send_request("T", b"x")
        oneway.flag = FLAG_ONEWAY
        await wire.send(oneway)
        answer = await wire.ask(REQUESTS["max offset"](), "root")
        assert answer.ext is not None
        assert int(answer.ext["offset"]) == 1


async def test_a_message_of_another_topic_is_not_given_back_to_ones_own_group() -> None:
    async with guarded() as wire:
        await create(wire, user("anna"))
        await allow(wire, acl("anna", entry("Topic:T", "Sub"), entry("Group:group", "Sub")))
        ids = [(await wire.ask(send_request(topic, b"x"), "root")).ext for topic in ("Secret", "T")]
        assert (await wire.ask(REQUESTS["create group"](), "root")).code == ResponseCode.SUCCESS
        answers = []
        for ext in ids:
            assert ext is not None
            back = {"offset": int(ext["msgId"][16:], 16), "group": "group", "delayLevel": 0, "originTopic": "T"}
            answers.append(await wire.ask(Command(CONSUMER_SEND_MSG_BACK.code, back), "anna"))
        assert [answer.code for answer in answers] == [ResponseCode.NO_PERMISSION, ResponseCode.SUCCESS]
        assert "to access Topic:Secret" in (answers[0].remark or "")


async def test_a_transaction_is_ended_by_who_may_send_to_its_topic() -> None:
    async with guarded() as wire:
        await create(wire, user("anna"), user("bob"))
        await allow(wire, acl("anna", entry("Topic:T", "Pub")), acl("bob", entry("Topic:U", "Pub")))
        half = send_request("T", b"x", properties="TRAN_MSG\1true\2PGROUP\1group\2UNIQ_KEY\1k\2", f=4)
        sent = (await wire.ask(half, "anna")).ext
        assert sent is not None
        for name, topic, code in (
            ("bob", {"topic": "U"}, ResponseCode.NO_PERMISSION),
            ("bob", {}, ResponseCode.NO_PERMISSION),
            ("anna", {}, ResponseCode.SUCCESS),
        ):
            end = {
                "producerGroup": "group", "tranStateTableOffset": sent["queueOffset"], "commitOrRollback": 8,
                "commitLogOffset": int(sent["msgId"][16:], 16), "msgId": "k", **topic,
            }  # fmt: skip
            answer = await wire.ask(Command(END_TRANSACTION.code, end), name)
            assert answer.code == code, answer.remark


async def test_refusals_are_in_the_log_but_secrets_are_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded() as wire:
        await create(wire, user("anna"))
        await update(wire, "anna", password="another-secret")
        await wire.ask(REQUESTS["send"](), "anna", "guessed")
        for _ in range(100):
            await wire.ask(REQUESTS["send"](), "who\n")
    assert "refused request 310 of user 'anna' at 127.0.0.1" in caplog.text
    assert "user 'who\\n'" in caplog.text
    assert sum("refused request" in record.getMessage() for record in caplog.records) < 100
    assert SECRET not in caplog.text
    assert "another-secret" not in caplog.text


async def test_the_trouble_of_a_broker_without_a_super_user_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded(init_authentication_user="") as wire:
        assert (await wire.ask(REQUESTS["send"]())).code == ResponseCode.NO_PERMISSION
    assert "there is no super user" in caplog.text
