"""What brokers push to their clients: only what the user of the connection may see, with users and with accounts."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.auth import AUTH_CREATE_ACL, AUTH_CREATE_USER
from skylark.remoting.protocol.requests.clients import HEART_BEAT, HeartbeatData, ProducerData
from skylark.remoting.protocol.requests.sends import (
    PUSH_REPLY_MESSAGE_TO_CLIENT,
    SEND_REPLY_MESSAGE_V2,
    SendMessageRequestHeader,
)
from skylark.remoting.protocol.requests.transactions import CHECK_TRANSACTION_STATE
from skylark.remoting.protocol.signature import Credentials
from tests.broker.running import running, send_request
from tests.broker.security.accounts.acl_files import ADMIN, account, write
from tests.broker.security.accounts.acl_files import SECRET as ACCOUNT_SECRET
from tests.broker.security.users.rows import SECRET, acl, entry, user
from tests.support.waiting import DEADLINE_S

GROUP = "g"
REPLIES = "DefaultCluster_REPLY_TOPIC"


class Client:
    """A client of ``who`` and what the broker has pushed to it."""

    def __init__(self, addr: str, remoting: RemotingClient, pushed: list[Command], first: trio.Event) -> None:
        self._addr = addr
        self._remoting = remoting
        self.pushed = pushed
        self.first = first

    async def ask(self, request: Command, **named: Any) -> Command:
        return await self._remoting.invoke(self._addr, request, **named)

    async def ok(self, request: Command, **named: Any) -> None:
        answer = await self.ask(request, **named)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def beat(self, client_id: str) -> Command:
        data = HeartbeatData(client_id, producer_data_set=[ProducerData(GROUP)])
        return await self.ask(HEART_BEAT.command(None), body=data)


class Guarded:
    """A broker with access control: ``the-shop`` may publish to T, ``stranger`` only to U."""

    def __init__(self, addr: str, secret: str) -> None:
        self._addr = addr
        self._secret = secret

    @asynccontextmanager
    async def client(self, who: str, *codes: int, secret: str = "") -> AsyncIterator[Client]:
        pushed: list[Command] = []
        first = trio.Event()

        def handle(channel: Channel, request: Command) -> Command:
            pushed.append(request)
            first.set()
            return request.respond(ResponseCode.SUCCESS)

        handlers = dict.fromkeys(codes, handle)
        async with open_client(handlers, credentials=Credentials(who, secret or self._secret)) as remoting:
            yield Client(self._addr, remoting, pushed, first)


@asynccontextmanager
async def with_users(tmp_path: Path, **options: Any) -> AsyncIterator[Guarded]:
    root = json.dumps({"username": "root", "password": SECRET})
    guards = {"authentication_enabled": True, "authorization_enabled": True, "init_authentication_user": root}
    async with running(**guards, **options) as (_, addr):
        guarded = Guarded(addr, SECRET)
        async with guarded.client("root") as boss:
            for name, topic in (("the-shop", "T"), ("stranger", "U")):
                request = Command(AUTH_CREATE_USER.code, {"username": name})
                await boss.ok(request, body=user(name))
                row = acl(name, entry(f"Topic:{topic}", "Pub"), entry(f"Topic:{REPLIES}", "Pub"))
                request = Command(AUTH_CREATE_ACL.code, {"subject": row.subject})
                await boss.ok(request, body=row)
        yield guarded


@asynccontextmanager
async def with_accounts(tmp_path: Path, **options: Any) -> AsyncIterator[Guarded]:
    rows = [
        account(name, "topicPerms:", f"- {topic}=PUB", f"- {REPLIES}=PUB", "defaultTopicPerm: DENY")
        for name, topic in (("the-shop", "T"), ("stranger", "U"))
    ]
    path = write(tmp_path / "conf" / "plain_acl.yml", ADMIN + "".join(rows))
    async with running(acl_enable=True, acl_file=path, **options) as (_, addr):
        yield Guarded(addr, ACCOUNT_SECRET)


Guard = Callable[..., AbstractAsyncContextManager[Guarded]]


@pytest.mark.parametrize("guard", [with_users, with_accounts])
async def test_a_half_is_shown_only_to_members_that_may_publish_to_its_topic(guard: Guard, tmp_path: Path) -> None:
    code = CHECK_TRANSACTION_STATE.code
    async with (
        guard(tmp_path, transaction_time_out=1, transaction_check_interval=100) as broker,
        broker.client("stranger", code) as stranger,
        broker.client("the-shop", code) as shop,
    ):
        # Producers are asked in turns, and the stranger is the first.
        assert (await stranger.beat("s")).code == ResponseCode.SUCCESS
        properties = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
        sent = await shop.ask(send_request("T", b"secret", properties=properties, f=4))
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        assert (await shop.beat("p")).code == ResponseCode.SUCCESS
        with trio.fail_after(DEADLINE_S):
            await shop.first.wait()
        assert b"secret" in shop.pushed[0].body
        # What was pushed before this answer has arrived.
        assert (await stranger.beat("s")).code == ResponseCode.SUCCESS
        assert stranger.pushed == []


async def test_a_heartbeat_that_nobody_has_to_sign_takes_nobodys_name(tmp_path: Path) -> None:
    code = CHECK_TRANSACTION_STATE.code
    open_codes = str(HEART_BEAT.code)
    options = {"authentication_whitelist": open_codes, "authorization_whitelist": open_codes}
    async with (
        with_users(tmp_path, transaction_time_out=1, transaction_check_interval=100, **options) as broker,
        broker.client("the-shop", code, secret="not the secret of the shop") as stranger,
        broker.client("the-shop", code) as shop,
    ):
        assert (await stranger.beat("s")).code == ResponseCode.SUCCESS
        properties = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
        await shop.ok(send_request("T", b"secret", properties=properties, f=4))
        assert (await shop.beat("p")).code == ResponseCode.SUCCESS
        with trio.fail_after(DEADLINE_S):
            await shop.first.wait()
        assert (await stranger.beat("s")).code == ResponseCode.SUCCESS
        assert stranger.pushed == []


def reply(client_id: str, topic: str = REPLIES) -> Command:
    header = SendMessageRequestHeader(
        producer_group=GROUP, topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0, sys_flag=0,
        born_timestamp=7, flag=0, properties=f"MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01{client_id}\x02",
    )  # fmt: skip
    command = SEND_REPLY_MESSAGE_V2.command(header)
    command.body = b"the reply"
    return command


@pytest.mark.parametrize("guard", [with_users, with_accounts])
async def test_a_client_id_belongs_to_the_user_of_its_connection(guard: Guard, tmp_path: Path) -> None:
    code = PUSH_REPLY_MESSAGE_TO_CLIENT.code
    async with (
        guard(tmp_path) as broker,
        broker.client("the-shop", code) as shop,
        broker.client("stranger", code) as stranger,
    ):
        async with broker.client("the-shop", code) as another:
            assert (await shop.beat("p")).code == ResponseCode.SUCCESS
            assert (await another.beat("p")).code == ResponseCode.SUCCESS, "the same user"
        refused = await stranger.beat("p")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert refused.remark == "the client id p belongs to a client of another user; take another one"
        assert (await stranger.beat("s")).code == ResponseCode.SUCCESS
        await stranger.ok(reply("p"))
        assert [each.body for each in shop.pushed] == [b"the reply"] and stranger.pushed == []
        await stranger.ok(send_request("U", b"x"))
        answer = await stranger.ask(reply("p", "U"))
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == f"replies go to the topic {REPLIES}, not to U"
        assert len(shop.pushed) == 1
        # The id waits for its user, whose connection broke.
        assert (await shop.beat("q")).code == ResponseCode.SUCCESS
        assert (await stranger.beat("p")).code == ResponseCode.NO_PERMISSION
        assert (await shop.beat("p")).code == ResponseCode.SUCCESS
