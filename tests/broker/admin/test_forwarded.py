"""307, 309 and 223: requests that are handed on to clients."""

from collections.abc import Callable
from math import inf

import pytest
import trio
import trio.testing

from skylark.broker.admin import forwarded
from skylark.mqcommon.message.ids import offset_msg_id
from skylark.mqcommon.message.message import decode_messages
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.dialect import Dialect, decode_body, encode_body
from skylark.remoting.protocol.requests.clients import (
    CONSUME_MESSAGE_DIRECTLY,
    GET_CONSUMER_RUNNING_INFO,
    HEART_BEAT,
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
)
from skylark.remoting.protocol.requests.offsets import GetConsumerStatusBody
from tests.broker.desk import Desk
from tests.broker.meta.test_client_handlers import beat
from tests.broker.store.support import HOST, put
from tests.support.caller import Answers, Caller

RUNNING_INFO = GET_CONSUMER_RUNNING_INFO.code
CONSUME_DIRECTLY = CONSUME_MESSAGE_DIRECTLY.code
STATUS = INVOKE_BROKER_TO_GET_CONSUMER_STATUS.code
QUEUE = MessageQueue("T", "broker-a", 0)


async def test_running_info_is_handed_on() -> None:
    desk, caller = Desk(), Caller()
    await desk.ask(HEART_BEAT.code, body=beat(), channel=caller.channel)
    client = Answers(b'{"properties":{"a":"b"}}')
    ext = {"consumerGroup": "g", "clientId": "c", "jstackEnable": "false"}
    async with caller.answering(client.answer):
        answer = await desk.ask(RUNNING_INFO, ext)
        assert (answer.code, answer.body) == (0, client.body)
        forwarded = client.asked[-1]
        assert (forwarded.code, forwarded.ext, forwarded.is_oneway) == (307, ext, False)
        answer = await desk.ask(RUNNING_INFO, ext, codec=CBOR)
        assert decode_body(ConsumerRunningInfo, answer.body, CBOR).properties == {"a": "b"}
        client.body = b"nonsense"
        answer = await desk.ask(RUNNING_INFO, ext, codec=CBOR)
        assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_a_message_is_handed_on_to_be_consumed_directly() -> None:
    desk, caller = Desk(), Caller()
    await desk.ask(HEART_BEAT.code, body=beat(), channel=caller.channel)
    put(desk.store, "t", 0, b"before")
    offset = desk.store.log.end
    put(desk.store, "t", 0, b"x")
    result = ConsumeMessageDirectlyResult(consume_result="CR_LATER", remark="why", spent_time_mills=5)
    client = Answers(encode_body(result))
    ext = {"consumerGroup": "g", "clientId": "c", "msgId": offset_msg_id(HOST, offset), "brokerName": "wrong"}
    async with caller.answering(client.answer):
        answer = await desk.ask(CONSUME_DIRECTLY, ext)
        assert (answer.code, answer.body) == (0, client.body)
        handed_on = client.asked[-1]
        assert (handed_on.code, handed_on.ext) == (309, {**ext, "brokerName": desk.meta.options.broker_name})
        [message] = decode_messages(handed_on.body)
        assert message.body == b"x"
        answer = await desk.ask(CONSUME_DIRECTLY, ext, codec=CBOR)
        assert decode_body(ConsumeMessageDirectlyResult, answer.body, CBOR) == result
        # whoever asks may bring the message
        await desk.ask(CONSUME_DIRECTLY, {"consumerGroup": "g", "clientId": "c"}, b"brought")
        assert client.asked[-1].body == b"brought"


@pytest.mark.parametrize("msg_id", ["", "nonsense", offset_msg_id(HOST, 1 << 40)])
async def test_no_message_to_be_consumed_directly(msg_id: str) -> None:
    desk, caller = Desk(), Caller()
    await desk.ask(HEART_BEAT.code, body=beat(), channel=caller.channel)
    answer = await desk.ask(CONSUME_DIRECTLY, {"consumerGroup": "g", "clientId": "c", "msgId": msg_id})
    assert answer.code == ResponseCode.SYSTEM_ERROR and answer.remark
    assert [command.code for command in caller.received()] == [40]


@pytest.mark.parametrize(
    ("end", "code", "remark"),
    [
        (lambda one: one.expire_requests(inf), ResponseCode.CONSUME_MSG_TIMEOUT, "consumer <g> <c> Timeout: "),
        (lambda one: one.close("x"), ResponseCode.SYSTEM_ERROR, "invoke consumer <g> <c> Exception: "),
    ],
)
async def test_a_client_that_does_not_answer(end: Callable[[Channel], None], code: int, remark: str) -> None:
    desk, caller = Desk(), Caller()
    await desk.ask(HEART_BEAT.code, body=beat(), channel=caller.channel)
    answers: list[Command] = []

    async def ask() -> None:
        answers.append(await desk.ask(RUNNING_INFO, {"consumerGroup": "g", "clientId": "c"}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        end(caller.channel)
    assert answers[0].code == code
    assert (answers[0].remark or "").startswith(remark)


async def test_a_client_that_is_not_there_or_too_old() -> None:
    desk = Desk()
    ext = {"consumerGroup": "g", "clientId": "c"}
    answer = await desk.ask(RUNNING_INFO, ext)
    assert (answer.code, answer.remark) == (1, "The Consumer <g> <c> not online")
    await desk.ask(HEART_BEAT.code, body=beat(), version=37)
    assert "too low to finish" in ((await desk.ask(RUNNING_INFO, ext)).remark or "")


def offsets(offset: int) -> Answers:
    return Answers(encode_body(GetConsumerStatusBody({QUEUE: offset}), Dialect.FASTJSON))


@pytest.mark.parametrize("codec", [0, CBOR])
async def test_clients_tell_their_offsets(codec: int) -> None:
    desk, one, other = Desk(), Caller("1.1.1.1:1"), Caller("2.2.2.2:2")
    await desk.ask(HEART_BEAT.code, body=beat("c1"), channel=one.channel)
    await desk.ask(HEART_BEAT.code, body=beat("c2"), channel=other.channel)
    first, second = offsets(3), offsets(5)
    async with one.answering(first.answer), other.answering(second.answer):
        answer = await desk.ask(STATUS, {"group": "g", "topic": "T"}, codec=codec)
        table = decode_body(GetConsumerStatusBody, answer.body, codec).consumer_table
        assert table == {"c1": {QUEUE: 3}, "c2": {QUEUE: 5}}
        assert first.asked[-1].ext == {"topic": "T", "group": "g"}
        answer = await desk.ask(STATUS, {"group": "g", "topic": "T", "clientAddr": "c2"}, codec=codec)
        assert decode_body(GetConsumerStatusBody, answer.body, codec).consumer_table == {"c2": {QUEUE: 5}}
        # What one of them says cannot be read: the others are shown.
        first.body = b"nonsense"
        answer = await desk.ask(STATUS, {"group": "g", "topic": "T"}, codec=codec)
        assert decode_body(GetConsumerStatusBody, answer.body, codec).consumer_table == {"c2": {QUEUE: 5}}


async def test_a_client_that_does_not_tell_its_offsets_is_left_out() -> None:
    desk, caller = Desk(), Caller()
    await desk.ask(HEART_BEAT.code, body=beat(), channel=caller.channel)
    answers: list[Command] = []

    async def ask() -> None:
        answers.append(await desk.ask(STATUS, {"group": "g", "topic": "T"}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        caller.channel.expire_requests(inf)
    assert (answers[0].code, answers[0].body) == (0, b'{"consumerTable":{}}')


async def test_offsets_of_clients_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    ext = {"group": "g", "topic": "T"}
    answer = await desk.ask(STATUS, ext)
    assert (answer.code, answer.remark) == (1, "No Any Consumer online in the consumer group: [g]")
    await desk.ask(HEART_BEAT.code, body=beat(), version=27)
    assert "does not support this feature" in ((await desk.ask(STATUS, ext)).remark or "")
    answer = await desk.ask(STATUS, {**ext, "clientAddr": "nobody"})
    assert (answer.code, answer.remark) == (1, "The Consumer <g> <nobody> not online")
    assert (await desk.ask(STATUS, {**ext, "group": "a b"})).code == ResponseCode.INVALID_PARAMETER
    assert (await desk.ask(STATUS, {**ext, "topic": ""})).code == ResponseCode.INVALID_PARAMETER
    monkeypatch.setattr(forwarded, "MAX_CLIENTS_ASKED", 0)
    assert "name one" in ((await desk.ask(STATUS, ext)).remark or "")
