"""Who may do what with accounts in files, through real sockets: kinds of accounts, permissions, white lists."""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import FLAG_ONEWAY, Command
from skylark.remoting.protocol.dialect import encode_body
from skylark.remoting.protocol.requests.consuming import CONSUMER_SEND_MSG_BACK
from skylark.remoting.protocol.requests.groups import UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, SubscriptionGroupConfig
from skylark.remoting.protocol.requests.offsets import GET_MAX_OFFSET
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE
from skylark.remoting.protocol.requests.topics import GET_TOPIC_CONFIG
from skylark.remoting.protocol.signature import Credentials, sign
from tests.broker.running import pull_request, running, send_request
from tests.broker.security.accounts.acl_files import ADMIN, SECRET, account, write
from tests.broker.security.wire import REQUESTS as COMMON_REQUESTS
from tests.broker.security.wire import Wire, connected
from tests.support.amounts import share_of

ACL = "org.apache.rocketmq.acl.common.AclException: "


def batch() -> Command:
    request = send_request("T", b"x", m=True)
    request.code = SEND_BATCH_MESSAGE.code
    return request


# What each kind of request needs of topic T and of the group.
NEEDS = {
    "send": "T", "batch": "T", "trace": "", "give back": "g", "pull": "tg", "commit": "tg", "heartbeat": "tg",
    "max offset": "t", "topic config": "*", "create topic": "a", "create group": "a", "broker config": "a",
}  # fmt: skip
MORE_REQUESTS: dict[str, Callable[[], Command]] = {
    "batch": batch,
    "trace": lambda: send_request("RMQ_SYS_TRACE_TOPIC", b"x"),
    "topic config": lambda: Command(GET_TOPIC_CONFIG.code, {"topic": "T"}),
}
REQUESTS = {what: (make, NEEDS[what]) for what, make in (COMMON_REQUESTS | MORE_REQUESTS).items()}
# By the permission on the topic, and on the group: what of the above is allowed.
PERMISSIONS = {"DENY": "", "PUB": "T*", "SUB": "t*", "PUB|SUB": "Tt*"}
GROUP_PERMISSIONS = {"DENY": "", "PUB": "", "SUB": "g", "PUB|SUB": "g"}


def accounts() -> Iterator[tuple[str, list[str], set[str]]]:
    """Name, lines in the file, and what is allowed."""
    for topic, of_topic in PERMISSIONS.items():
        for group, of_group in GROUP_PERMISSIONS.items():
            rights = {*of_topic, *of_group}
            name = f"{topic}-{group}".replace("|", "-").lower()
            named = ["topicPerms:", f"- T={topic}", "groupPerms:", f"- group={group}"]
            # The default must not matter for what is named, so it is the opposite.
            opposite = "PUB|SUB" if topic == "DENY" else "DENY"
            yield f"named-{name}", [*named, f"defaultTopicPerm: {opposite}", f"defaultGroupPerm: {opposite}"], rights
            others = ["topicPerms:", "- U=PUB|SUB", "groupPerms:", "- other=DENY"]
            yield f"default-{name}", [*others, f"defaultTopicPerm: {topic}", f"defaultGroupPerm: {group}"], rights
    yield "nothing", [], set()
    yield "admin-2", ["admin: true", "defaultTopicPerm: DENY", "topicPerms:", "- T=DENY"], set("Ttg*a")
    yield "elsewhere", ["whiteRemoteAddress: 10.0.0.*"], set()
    yield "denied-here", ["whiteRemoteAddress: 127.0.1-9.*,127.0.0.{2,3}"], set()


def allowed(rights: set[str], needs: str) -> bool:
    return "*" in rights if needs == "*" else set(needs) <= rights


@asynccontextmanager
async def guarded(tmp_path: Path, text: str = ADMIN, **options: Any) -> AsyncIterator[Wire]:
    path = write(tmp_path / "conf" / "plain_acl.yml", text)
    async with running(acl_enable=True, acl_file=path, **options) as (_, addr), connected(addr) as wire:
        yield wire


async def test_the_truth_table(tmp_path: Path) -> None:
    rows = {f"account-{name}": (lines, rights) for name, lines, rights in accounts()}
    text = ADMIN + "".join(account(name, *lines) for name, (lines, _) in rows.items())
    async with guarded(tmp_path, text) as wire:
        for what, (make, needs) in REQUESTS.items():
            for name, (_, rights) in rows.items():
                answer = await wire.ask(make(), name, SECRET)
                refused = (answer.remark or "").startswith(ACL)
                assert refused != allowed(rights, needs), (what, name, answer)
                assert not refused or answer.code == ResponseCode.SYSTEM_ERROR


# Whether a white list has the callers of these tests.
WHITE_LISTS = {
    "*": True,
    "127.0.0.1": True,
    "127.0.*.*": True,
    "10.1.2.3,127.0.0.1": True,
    "127.0.0.{1,2}": True,
    "127.0.0.1-5": True,
    "10.0.0.*": False,
    "::1": False,
}


# Each list with one of the two ways to treat it.
@pytest.mark.parametrize(("white", "skips_all"), tuple(share_of(product(WHITE_LISTS, [True, False]), 2)))
async def test_white_lists(tmp_path: Path, white: str, skips_all: bool) -> None:
    """Global white lists, and white lists of accounts: callers on them may do everything, or only need no signature."""
    is_white = WHITE_LISTS[white]
    pub = account("account-pub", "topicPerms:", "- T=PUB")
    at = account("account-white", f"whiteRemoteAddress: '{white}'", "topicPerms:", "- T=PUB")
    for text in (f"globalWhiteRemoteAddresses:\n- '{white}'\n{ADMIN}{pub}", ADMIN + at):
        is_global = text.startswith("global")
        name = "account-pub" if is_global else "account-white"
        async with guarded(tmp_path, text, acl_white_list_skips_all=skips_all) as wire:
            for what, (make, needs) in REQUESTS.items():
                nobody = await wire.ask(make())
                assert ((nobody.remark or "") == f"{ACL}No accessKey is configured") != (
                    is_global and is_white and skips_all
                ), what
                unsigned = await wire.ask(make(), name, "a wrong secret")
                may = is_white and (skips_all or allowed(set("T*"), needs))
                assert (unsigned.remark or "").startswith(ACL) != may, (what, unsigned)


async def test_who_is_nobody_may_do_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path) as wire:
        for what, (make, _) in REQUESTS.items():
            empty = make()
            empty.ext = {**(empty.ext or {}), "AccessKey": "", "Signature": "x"}
            for request, name, secret, remark in (
                (make(), "", "", "No accessKey is configured"),
                (empty, "", "", "No accessKey is configured"),
                (make(), "somebody", SECRET, "No acl config for somebody"),
                (make(), "admin-account", "another", "Check signature failed for accessKey=admin-account"),
            ):
                answer = await wire.ask(request, name, secret)
                assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"{ACL}{remark}"), what


async def test_the_texts_of_refusals_are_rocketmqs(tmp_path: Path) -> None:
    async with guarded(tmp_path, ADMIN + account("account-1")) as wire:
        for what, remark in (
            ("send", "No default permission for topic:T"),
            ("give back", "No default permission for group:group"),
            ("create topic", "Need admin permission for request code=17, but accessKey=account-1 is not"),
        ):
            make, _ = REQUESTS[what]
            assert (await wire.ask(make(), "account-1", SECRET)).remark == ACL + remark


async def test_oneway_and_pipelined_requests_are_checked_too(tmp_path: Path) -> None:
    async with guarded(tmp_path) as wire:
        assert (await wire.ask(send_request("T", b"x"), "admin-account", SECRET)).code == ResponseCode.SUCCESS
        requests = [send_request("T", b"x") for _ in range(6)]
        for request in requests[::2]:
            request.flag = FLAG_ONEWAY
        for request in requests[:3]:
            await wire.send(request)
        sign(requests[3], Credentials("admin-account", SECRET))
        await wire.send(requests[3])
        sign(requests[4], Credentials("admin-account", SECRET))
        requests[4].body = b"another body"
        await wire.send(requests[4])
        offset = Command(GET_MAX_OFFSET.code, {"topic": "T", "queueId": 0})
        answer = await wire.ask(offset, "admin-account", SECRET)
        assert answer.ext is not None
        assert int(answer.ext["offset"]) == 2


async def test_refusals_are_in_the_log_with_their_rule_but_secrets_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    text = ADMIN + account("account-1", "topicPerms:", "- T=SUB")
    async with guarded(tmp_path, text) as wire:
        await wire.ask(send_request("T", b"x"), "account-1", SECRET)
        await wire.ask(send_request("T", b"x"), "account-1", "another-secret")
    lines = [record.getMessage() for record in caplog.records if record.name == "skylark.broker.security.audit"]
    assert len(lines) == 2
    path = tmp_path / "conf" / "plain_acl.yml"
    assert "refused request 310 of user 'account-1' at 127.0.0.1" in lines[0]
    assert f"No default permission for topic:T (topicPerms: T=SUB, in {path})" in lines[0]
    assert "Check signature failed" in lines[1]
    assert SECRET not in caplog.text and "another-secret" not in caplog.text


async def test_a_group_with_a_longer_name_keeps_its_retry_topic_to_itself(tmp_path: Path) -> None:
    """%RETRY%a_b could also be of group a, for pops of a topic b."""
    text = ADMIN + account("account-a", "groupPerms:", "- a=SUB", "- a_b=DENY", "topicPerms:", "- b=SUB")
    async with guarded(tmp_path, text) as wire:
        for name in ("a", "a_b"):
            body = encode_body(SubscriptionGroupConfig(name))
            made = Command(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.code, None, body)
            assert (await wire.ask(made, "admin-account", SECRET)).code == ResponseCode.SUCCESS
        sent = await wire.ask(send_request("%RETRY%a_b", b"x"), "admin-account", SECRET)
        assert sent.code == ResponseCode.SUCCESS and sent.ext is not None
        pull = pull_request("%RETRY%a_b", 0, consumerGroup="a")
        back_ext = {"group": "a", "offset": int(sent.ext["msgId"][16:], 16), "delayLevel": 0}
        back = Command(CONSUMER_SEND_MSG_BACK.code, back_ext)
        for request in (pull, back):
            answer = await wire.ask(request, "account-a", SECRET)
            assert answer.remark == f"{ACL}No default permission for group:a_b"
