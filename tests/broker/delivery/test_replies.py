"""Replies at the broker: pushed to the requester, stored, and answered with the outcome."""

from typing import Any

import pytest

from skylark.mqcommon.message.message import decode_messages
from skylark.mqcommon.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.clients import HEART_BEAT, HeartbeatData, ProducerData
from skylark.remoting.protocol.requests.sends import (
    PUSH_REPLY_MESSAGE_TO_CLIENT,
    SEND_REPLY_MESSAGE,
    SEND_REPLY_MESSAGE_V2,
    SendMessageRequestHeader,
)
from tests.broker.running import pull_request, running

TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c1\x02REPLY_TO_CLIENT\x01me\x02"


def reply(what: Any = SEND_REPLY_MESSAGE_V2, properties: str = PROPERTIES, **changes: Any) -> Command:
    fields = {"topic": TOPIC, "queue_id": 0, "sys_flag": 0, **changes}
    header = SendMessageRequestHeader(
        producer_group="g", default_topic="TBW102", default_topic_queue_nums=4, born_timestamp=7, flag=3,
        properties=properties, **fields,
    )  # fmt: skip
    command: Command = what.command(header)
    command.body = b"the reply"
    return command


class Asker:
    """A client with a producer, which gets replies."""

    def __init__(self, code: int = ResponseCode.SUCCESS) -> None:
        self.code = code
        self.got: list[Command] = []

    def handle(self, channel: Channel, request: Command) -> Command:
        self.got.append(request)
        return request.respond(self.code, "as told")


async def beat(client: Any, addr: str) -> None:
    data = HeartbeatData("me", producer_data_set=[ProducerData("g")])
    assert (await client.invoke(addr, HEART_BEAT.command(None), body=data)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("what", [SEND_REPLY_MESSAGE, SEND_REPLY_MESSAGE_V2])
@pytest.mark.parametrize("stores", [True, False])
async def test_a_reply_is_pushed_and_stored(what: Any, stores: bool) -> None:
    asker = Asker()
    async with (
        running(store_reply_message_enable=stores) as (client, addr),
        open_client({PUSH_REPLY_MESSAGE_TO_CLIENT.code: asker.handle}) as waiting,
    ):
        await beat(waiting, addr)
        answer = await client.invoke(addr, reply(what))
        assert answer.code == ResponseCode.SUCCESS and answer.ext is not None
        (pushed,) = asker.got
        assert pushed.body == b"the reply" and pushed.ext is not None
        assert pushed.ext["properties"].startswith(PROPERTIES + "PUSH_REPLY_TIME\x01")
        assert (pushed.ext["topic"], int(pushed.ext["flag"]), int(pushed.ext["bornTimestamp"])) == (TOPIC, 3, 7)
        assert pushed.ext["bornHost"].startswith("/127.0.0.1:")
        found = await client.invoke(addr, pull_request(TOPIC, 0))
        bodies = [message.body for message in decode_messages(found.body)]
        assert bodies == ([b"the reply"] if stores else [])
        assert (answer.ext["msgId"] != "0") is stores


async def test_a_reply_of_a_client_with_a_namespace_is_pushed_and_stored() -> None:
    """RocketMQ's clients put the reply topic into their namespace, in which nobody has created it."""
    asker = Asker()
    async with (
        running() as (client, addr),
        open_client({PUSH_REPLY_MESSAGE_TO_CLIENT.code: asker.handle}) as waiting,
    ):
        await beat(waiting, addr)
        assert (await client.invoke(addr, reply(topic=f"prod%{TOPIC}"))).code == ResponseCode.SUCCESS
        assert [(each.ext or {})["topic"] for each in asker.got] == [f"prod%{TOPIC}"]
        found = await client.invoke(addr, pull_request(TOPIC, 0))
        assert [message.body for message in decode_messages(found.body)] == [b"the reply"]


@pytest.mark.parametrize(
    ("properties", "text"),
    [("a\x01b\x02", r"properties\[REPLY_TO_CLIENT\] is null"), (PROPERTIES, "channel of <me> not found")],
)
async def test_a_reply_that_nobody_waits_for_is_stored_only(properties: str, text: str) -> None:
    async with running() as (client, addr):
        answer = await client.invoke(addr, reply(properties=properties))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert text.replace("\\", "") in (answer.remark or "")
        assert len(decode_messages((await client.invoke(addr, pull_request(TOPIC, 0))).body)) == 1


async def test_a_client_that_refuses_the_reply_is_told_to_the_sender() -> None:
    asker = Asker(ResponseCode.SYSTEM_ERROR)
    async with (
        running() as (client, addr),
        open_client({PUSH_REPLY_MESSAGE_TO_CLIENT.code: asker.handle}) as waiting,
    ):
        await beat(waiting, addr)
        answer = await client.invoke(addr, reply())
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "push reply message to me fail: as told")


BAD_REPLIES: list[tuple[dict[str, Any], int]] = [
    ({"topic": "nowhere"}, ResponseCode.NO_PERMISSION),
    ({"topic": "a b"}, ResponseCode.NO_PERMISSION),
    ({"topic": f"%{TOPIC}"}, ResponseCode.NO_PERMISSION),
    ({"topic": f"a%b%{TOPIC}"}, ResponseCode.NO_PERMISSION),
    ({"topic": f"prod%not-{TOPIC}"}, ResponseCode.NO_PERMISSION),
    # Their messages say what the broker is to do, so what a client writes there would be obeyed.
    ({"topic": SCHEDULE_TOPIC}, ResponseCode.NO_PERMISSION),
    ({"topic": TRANS_HALF_TOPIC}, ResponseCode.NO_PERMISSION),
    ({"topic": TRANS_OP_TOPIC}, ResponseCode.NO_PERMISSION),
    ({"queue_id": 1}, ResponseCode.INVALID_PARAMETER),
    ({"sys_flag": 4}, ResponseCode.MESSAGE_ILLEGAL),
]


async def test_bad_replies_are_refused() -> None:
    async with running() as (client, addr):
        for changes, code in BAD_REPLIES:
            assert (await client.invoke(addr, reply(**changes))).code == code, changes
            pulled = await client.invoke(addr, pull_request(changes.get("topic", TOPIC), 0))
            assert not pulled.body, "a refused reply is not stored"
        assert (await client.invoke(addr, reply(queue_id=-1))).code == ResponseCode.SYSTEM_ERROR  # nobody waits
