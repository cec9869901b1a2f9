"""3001 to 3010: what is kept, what is refused and with which words, and who sees passwords."""

from typing import Any, cast

import pytest

from skylark.broker.admin.access_control import PolicyHandlers, UserHandlers
from skylark.broker.security.users import checks
from skylark.broker.security.users.guard import Logins
from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body, encode_body
from skylark.remoting.protocol.requests.auth import (
    AUTH_CREATE_ACL,
    AUTH_CREATE_USER,
    AUTH_DELETE_ACL,
    AUTH_DELETE_USER,
    AUTH_GET_ACL,
    AUTH_GET_USER,
    AUTH_LIST_ACL,
    AUTH_LIST_USER,
    AUTH_UPDATE_ACL,
    AUTH_UPDATE_USER,
    GET_AUTH_TABLES,
    AclInfo,
    AclInfos,
    AuthTables,
    PolicyEntryInfo,
    UserInfo,
    UserInfos,
)
from skylark.remoting.protocol.sealing import SEALED_FIELD, unseal
from skylark.remoting.protocol.signature import Credentials, WholeSignatures, sign
from tests.broker.meta.support import MetadataDir, options
from tests.broker.security.users.rows import SECRET, acl, entry, user
from tests.support.caller import Caller

#: With RocketMQ's signature, and whole requests without and with the server's address.
PLAIN, UNBOUND, BOUND = "plain", "unbound", "bound"


class Encrypted:
    """A channel with TLS."""

    is_encrypted = True

    def __init__(self, channel: Channel) -> None:
        self.signatures, self.remote = channel.signatures, channel.remote
        self.max_frame_bytes = channel.max_frame_bytes


class UserDesk:
    """The handlers on tables in memory."""

    def __init__(self, **changes: Any) -> None:
        self.meta = MetadataDir(options(**changes))
        users, acls = self.meta.metadata.users, self.meta.metadata.acls
        self.users, self.acls = users, acls
        self.sealed = 0
        logins = Logins(users, acls, self.meta.options.plain_codes)
        families = (
            UserHandlers(users, acls, logins, self.meta.options, self.durable),
            PolicyHandlers(users, acls, self.durable),
        )
        self.quick = {code: each for family in families for code, each in family.handlers().items()}
        self.slow = {code: each for family in families for code, each in family.slow_handlers().items()}
        self.steps = {code: each for family in families for code, each in family.step_handlers().items()}

    async def durable(self) -> None:
        self.meta.journal.sync()

    async def ask(
        self, code: int, body: Body | bytes = b"", by: str = "", *, signed: str = BOUND, tls: bool = False, **ext: str
    ) -> Command:
        """The answer; ``by``: the user who signs, in the way ``signed``. What is sealed is opened."""
        request = Command(code, dict(ext), encode_body(body) if isinstance(body, Body) else body)
        channel = Caller().channel
        signatures = WholeSignatures("challenge", "127.0.0.1:10911" if signed == BOUND else "")
        if by and signed == PLAIN:
            sign(request, Credentials(by, SECRET))
        elif by:
            channel.signatures = WholeSignatures("challenge", signatures.server)
            signatures.sign(request, Credentials(by, SECRET))
        if tls:
            channel = cast(Channel, Encrypted(channel))
        try:
            if code in self.slow:
                answer = await self.slow[code](channel, request)
            else:
                found = self.quick[code](channel, request) if code in self.quick else None
                answer = found or finish(self.steps[code](channel, request))
        except RequestRefused as refused:
            answer = request.respond(refused.code, refused.remark)
        assert isinstance(answer, Command)
        if SEALED_FIELD in (answer.ext or {}):
            assert SECRET.encode() not in answer.body
            answer.body = unseal(signatures.sealing_key(SECRET), answer.body)
            self.sealed += 1
        return answer

    async def done(self, code: int, body: Body | bytes = b"", by: str = "", **ext: str) -> None:
        answer = await self.ask(code, body, by, **ext)
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)


async def test_a_user_is_created_changed_and_deleted_and_on_disk_when_answered() -> None:
    desk = UserDesk()
    # as RocketMQ's mqadmin sends it: without a type
    await desk.done(
        AUTH_CREATE_USER.code, b'{"username":"anna","password":"' + SECRET.encode() + b'"}', username="anna"
    )
    desk.meta.power_loss()
    assert desk.meta.metadata.users.get("anna") == UserInfo("anna", SECRET, "Normal", "enable")
    desk = UserDesk()
    await desk.done(AUTH_CREATE_USER.code, UserInfo("other", SECRET, "super"), username="anna")
    assert desk.users.all() == {"anna": UserInfo("anna", SECRET, "Super", "enable")}, "the name is the header's"
    await desk.done(AUTH_UPDATE_USER.code, UserInfo(user_status="DISABLE"), username="anna")
    assert desk.users.get("anna") == UserInfo("anna", SECRET, "Super", "disable")
    await desk.done(AUTH_UPDATE_USER.code, UserInfo(password="new", user_type="Normal"), username="anna")
    assert desk.users.get("anna") == UserInfo("anna", "new", "Normal", "disable")
    await desk.done(AUTH_CREATE_ACL.code, acl("anna", entry("Topic:T", "Pub")), subject="User:anna")
    for _ in range(2):
        await desk.done(AUTH_DELETE_USER.code, username="anna")
    assert (desk.users.all(), desk.acls.all()) == ({}, {})


@pytest.mark.parametrize(
    ("code", "name", "body", "status", "text"),
    [
        (AUTH_CREATE_USER.code, " ", user("x"), 1, "The username is blank"),
        (AUTH_CREATE_USER.code, "a b", user("x"), 16, "blanks"),
        (AUTH_CREATE_USER.code, "a,b", user("x"), 16, "which mean something else"),
        (AUTH_CREATE_USER.code, "x" * 256, user("x"), 16, "255 are the most"),
        (AUTH_CREATE_USER.code, "x", UserInfo(), 16, "password can not be blank"),
        (AUTH_CREATE_USER.code, "x", UserInfo(password=" "), 16, "password can not be blank"),
        (AUTH_CREATE_USER.code, "x", UserInfo(password="p" * 256), 16, "The password has 256 characters; 255 are"),
        (AUTH_CREATE_USER.code, "x", user("x", "King"), 16, "The user type 'King' is unknown: give Super or Normal"),
        (AUTH_CREATE_USER.code, "x", user("x", status="on"), 16, "The user status 'on' is unknown"),
        (AUTH_CREATE_USER.code, "anna", user("x"), 16, "The user is existed"),
        (AUTH_CREATE_USER.code, "x", b"", 1, "the body cannot be read"),
        (AUTH_CREATE_USER.code, "x", b"[]", 1, "the body cannot be read"),
        (AUTH_UPDATE_USER.code, "x", user("x"), 16, "The user is not exist"),
        (AUTH_UPDATE_USER.code, "", user("x"), 1, "The username is blank"),
        (AUTH_DELETE_USER.code, "", b"", 1, "The username is blank"),
        (AUTH_GET_USER.code, "", b"", 1, "The username is blank"),
    ],
)
async def test_wrong_users_are_refused(code: int, name: str, body: Body | bytes, status: int, text: str) -> None:
    desk = UserDesk()
    desk.users.put(user("anna"))
    answer = await desk.ask(code, body, username=name)
    assert answer.code == status
    assert text in (answer.remark or "")
    assert SECRET not in (answer.remark or "")
    assert desk.users.all() == {"anna": user("anna")}


def bad_entry(**changes: Any) -> AclInfo:
    one = entry("Topic:T", "Pub")
    for name, value in changes.items():
        setattr(one, name, value)
    return acl("anna", one)


@pytest.mark.parametrize(
    ("subject", "body", "status", "text"),
    [
        ("anna", bad_entry(), 16, "give User:name"),
        ("User:", bad_entry(), 16, "give User:name"),
        ("User:nobody", bad_entry(), 16, "is not exist: create the user"),
        ("User:anna", AclInfo("User:anna"), 16, "The policies is empty"),
        ("User:anna", acl("bob", entry("Topic:T", "Pub")), 16, "give both the same subject"),
        ("User:anna", b'{"policies":[{"entries":[]}]}', 16, "The policy entries is empty"),
        ("User:anna", bad_entry(resource="Queue:T"), 16, "The resource is wrong: 'Queue:T' is no resource"),
        ("User:anna", bad_entry(actions=[]), 16, "The actions is empty"),
        ("User:anna", bad_entry(actions=["Any"]), 16, "The actions can not be Any"),
        ("User:anna", bad_entry(actions=["Read"]), 16, "The action 'Read' is unknown"),
        ("User:anna", bad_entry(source_ips=["10.0.0.300"]), 16, "The source ip is invalid"),
        ("User:anna", bad_entry(decision="Maybe"), 16, "The decision 'Maybe' is unknown: give Allow or Deny"),
        ("User:anna", b'{"policies":[{"policyType":"X","entries":[{}]}]}', 16, "The policy type 'X' is unknown"),
        ("User:anna", acl("anna", *[entry("Topic:T", "Pub")] * 1_001), 16, "1000 are the most"),
        ("User:anna", b"", 1, "the body cannot be read"),
    ],
)
@pytest.mark.parametrize("code", [AUTH_CREATE_ACL.code, AUTH_UPDATE_ACL.code])
async def test_wrong_policies_are_refused(code: int, subject: str, body: Body | bytes, status: int, text: str) -> None:
    desk = UserDesk()
    desk.users.put(user("anna"))
    answer = await desk.ask(code, body, subject=subject)
    assert answer.code == status
    assert text in (answer.remark or "")
    assert desk.acls.all() == {}


async def test_policies_have_one_spelling() -> None:
    desk = UserDesk()
    desk.users.put(user("anna"))
    sent = acl("anna", entry("topic:T", "pub,PUB,sub", "allow", "10.0.0.1"))
    sent.subject, sent.policies[0].policy_type = "", None
    await desk.done(AUTH_CREATE_ACL.code, sent, subject="user:anna")
    assert desk.acls.get("User:anna") == acl("anna", entry("Topic:T", "Pub,Sub", "Allow", "10.0.0.1"))
    await desk.done(AUTH_UPDATE_ACL.code, acl("anna", entry("Topic:T", "All")), subject="User:anna")
    assert desk.acls.get("User:anna") == acl("anna", entry("Topic:T", "All"))


async def test_policies_are_deleted() -> None:
    desk = UserDesk()
    desk.users.put(user("anna"))
    rows = acl("anna", entry("Topic:T", "Pub"), entry("Topic:U", "Pub"), default=(entry("Topic:T", "Sub"),))
    desk.acls.put(rows)
    await desk.done(AUTH_DELETE_ACL.code, subject="User:anna", resource="Topic:T")
    assert desk.acls.get("User:anna") == acl("anna", entry("Topic:U", "Pub"), default=(entry("Topic:T", "Sub"),))
    await desk.done(AUTH_DELETE_ACL.code, subject="User:anna", resource="topic:T", policyType="default")
    assert desk.acls.get("User:anna") == acl("anna", entry("Topic:U", "Pub"))
    await desk.done(AUTH_DELETE_ACL.code, subject="User:anna")
    assert desk.acls.all() == {}
    answer = await desk.ask(AUTH_DELETE_ACL.code, subject="User:anna")
    assert (answer.code, answer.remark) == (16, "The acl is not exist: User:anna has no policies")


async def test_users_and_policies_are_listed() -> None:
    desk = UserDesk()
    assert (await desk.ask(AUTH_LIST_USER.code)).body == b""
    assert (await desk.ask(AUTH_GET_USER.code, username="anna")).body == b"", "as RocketMQ: a success without a body"
    for name in ("bob", "anna"):
        desk.users.put(user(name))
        assert (await desk.ask(AUTH_GET_ACL.code, subject=f"User:{name}")).body == b""
    listed = await desk.ask(AUTH_LIST_USER.code)
    assert listed.body == (
        b'[{"userStatus":"enable","userType":"Normal","username":"anna"},'
        b'{"userStatus":"enable","userType":"Normal","username":"bob"}]'
    )
    assert len(decode_body(UserInfos, (await desk.ask(AUTH_LIST_USER.code, filter="o")).body).users) == 1
    assert (await desk.ask(AUTH_LIST_ACL.code)).body == b""
    desk.acls.put(acl("bob", entry("Topic:T", "Pub")))
    desk.acls.put(acl("anna", entry("Topic:T", "Pub"), entry("Group:g", "Sub")))
    every = decode_body(AclInfos, (await desk.ask(AUTH_LIST_ACL.code)).body).acls
    assert [each.subject for each in every] == ["User:anna", "User:bob"]
    some = decode_body(
        AclInfos, (await desk.ask(AUTH_LIST_ACL.code, subjectFilter="a", resourceFilter="Group")).body
    ).acls
    assert some == [acl("anna", entry("Group:g", "Sub"))]
    found = decode_body(AclInfo, (await desk.ask(AUTH_GET_ACL.code, subject="User:bob")).body)
    assert found == acl("bob", entry("Topic:T", "Pub"))


@pytest.mark.parametrize(("by", "shown"), [("", None), ("anna", None), ("boss", SECRET), ("off", None)])
async def test_passwords_are_shown_to_super_users_only(by: str, shown: str | None) -> None:
    desk = UserDesk()
    for each in (user("anna"), user("boss", "Super"), user("off", "Super", "disable")):
        desk.users.put(each)
    assert decode_body(UserInfo, (await desk.ask(AUTH_GET_USER.code, by=by, username="anna")).body).password == shown
    users = decode_body(UserInfos, (await desk.ask(AUTH_LIST_USER.code, by=by)).body).users
    assert {each.password for each in users} == {shown}
    answer = await desk.ask(GET_AUTH_TABLES.code, by=by)
    if shown:
        tables = decode_body(AuthTables, answer.body)
        assert {each.username: each for each in tables.users} == desk.users.all()
    else:
        assert answer.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("signed", "tls", "options", "way"),
    [
        (BOUND, False, {}, "sealed"),
        (BOUND, True, {}, "clear"),
        (BOUND, False, {"plain_passwords_to": "boss@127.0.0.1"}, "clear"),
        (UNBOUND, False, {}, "none"),
        (UNBOUND, True, {}, "clear"),
        (UNBOUND, False, {"plain_passwords_to": "boss"}, "clear"),
        (UNBOUND, False, {"plain_passwords_to": "anna;boss@10.0.0.0/8"}, "none"),
        (PLAIN, False, {}, "none"),
        (PLAIN, True, {}, "none"),
        (PLAIN, False, {"plain_passwords_to": "boss"}, "none"),
        (PLAIN, False, {"plain_signature_codes": "127.0.0.1:3004,3005,7101"}, "none"),
        (PLAIN, True, {"plain_signature_codes": "127.0.0.1:3004,3005,7101"}, "clear"),
        (PLAIN, False, {"plain_signature_codes": "boss:3004,3005,7101", "plain_passwords_to": "127.0.0.1"}, "clear"),
        (PLAIN, False, {"plain_signature_codes": "boss:26", "plain_passwords_to": "127.0.0.1"}, "none"),
    ],
)
async def test_passwords_are_encrypted_unless_an_option_says_otherwise(
    signed: str, tls: bool, options: dict[str, str], way: str
) -> None:
    desk = UserDesk(**options)
    for each in (user("anna"), user("boss", "Super")):
        desk.users.put(each)
    one = await desk.ask(AUTH_GET_USER.code, by="boss", signed=signed, tls=tls, username="anna")
    listed = await desk.ask(AUTH_LIST_USER.code, by="boss", signed=signed, tls=tls)
    tables = await desk.ask(GET_AUTH_TABLES.code, by="boss", signed=signed, tls=tls)
    shown = None if way == "none" else SECRET
    assert decode_body(UserInfo, one.body).password == shown
    assert {each.password for each in decode_body(UserInfos, listed.body).users} == {shown}
    assert tables.code == (ResponseCode.NO_PERMISSION if way == "none" else ResponseCode.SUCCESS)
    assert desk.sealed == (3 if way == "sealed" else 0)


@pytest.mark.parametrize("change", ["delete", "disable", "demote"])
async def test_the_last_super_user_stays_while_authentication_is_on(change: str) -> None:
    async def last_goes(desk: UserDesk) -> Command:
        if change == "delete":
            return await desk.ask(AUTH_DELETE_USER.code, by="boss", username="boss")
        body = UserInfo(user_status="disable") if change == "disable" else UserInfo(user_type="Normal")
        return await desk.ask(AUTH_UPDATE_USER.code, body, "boss", username="boss")

    desk = UserDesk(authentication_enabled=True)
    for each in (user("boss", "Super"), user("off", "Super", "disable"), user("anna")):
        desk.users.put(each)
    answer = await last_goes(desk)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "boss is the last super user, and authenticationEnabled is on: create another"
    await desk.done(AUTH_UPDATE_USER.code, UserInfo(password=SECRET), "boss", username="boss")
    desk.users.put(user("second", "Super"))
    assert (await last_goes(desk)).code == ResponseCode.SUCCESS
    without = UserDesk()
    without.users.put(user("boss", "Super"))
    assert (await last_goes(without)).code == ResponseCode.SUCCESS


async def test_there_is_a_most_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.broker.admin.access_control.MAX_USERS", 1)
    monkeypatch.setattr(checks, "MAX_ALL_ENTRIES", 2)
    desk = UserDesk()
    await desk.done(AUTH_CREATE_USER.code, user("anna"), username="anna")
    answer = await desk.ask(AUTH_CREATE_USER.code, user("bob"), username="bob")
    assert (answer.code, answer.remark) == (16, "There are 1 users, which are the most: delete some")
    desk.users.put(user("bob"))
    two = [entry("Topic:T", "Pub"), entry("Topic:U", "Pub")]
    await desk.done(AUTH_CREATE_ACL.code, acl("anna", *two), subject="User:anna")
    await desk.done(AUTH_UPDATE_ACL.code, acl("anna", *two), subject="User:anna")
    refused = await desk.ask(
        AUTH_CREATE_ACL.code, acl("bob", PolicyEntryInfo("*", ["All"], None, "Allow")), subject="User:bob"
    )
    assert "All users would have 3 entries" in (refused.remark or "")
