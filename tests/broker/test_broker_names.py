"""A request that names another broker is refused without effect; requests of official clients are served."""

from typing import Any

import pytest

from skylark.broker.assembly import hooked
from skylark.broker.broker_names import NAME_THE_BROKER, BrokerNames, check_broker_name
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.batch import encode_batch
from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.brokers import GET_BROKER_RUNTIME_INFO
from skylark.remoting.protocol.requests.offsets import (
    GET_EARLIEST_MSG_STORETIME,
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    QUERY_CONSUMER_OFFSET,
    SEARCH_OFFSET_BY_TIMESTAMP,
    UPDATE_CONSUMER_OFFSET,
)
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE
from tests.broker.running import pull_request, running, send_request
from tests.remoting.protocol.golden import recorded
from tests.support.caller import Caller

QUEUE = {"topic": "t", "queueId": 0}
BATCH = send_request("t", encode_batch([(0, b"x", b"")]), n="broker-z")
BATCH.code = SEND_BATCH_MESSAGE.code
LONG = {
    "producerGroup": "g", "topic": "t", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
    "sysFlag": 0, "bornTimestamp": 1, "flag": 0,
}  # fmt: skip


FOR_ANOTHER = [
    send_request("t", b"x", n="broker-z"),
    BATCH,
    Command(SEND_MESSAGE.code, {**LONG, "brokerName": "broker-z"}, b"x"),
    Command(SEND_MESSAGE.code, {**LONG, "bname": "broker-z"}, b"x"),
    pull_request("t", 0, bname="broker-z"),
    Command(UPDATE_CONSUMER_OFFSET.code, {**QUEUE, "consumerGroup": "g", "commitOffset": 7, "bname": "z"}),
    Command(QUERY_CONSUMER_OFFSET.code, {**QUEUE, "consumerGroup": "g", "bname": "z"}),
    Command(GET_MAX_OFFSET.code, {**QUEUE, "bname": "z"}),
    Command(GET_MIN_OFFSET.code, {**QUEUE, "bname": "z"}),
    Command(GET_EARLIEST_MSG_STORETIME.code, {**QUEUE, "bname": "z"}),
    Command(SEARCH_OFFSET_BY_TIMESTAMP.code, {**QUEUE, "timestamp": 0, "bname": "z"}),
]


async def test_a_request_for_another_broker_is_refused() -> None:
    async with running() as (client, addr):
        assert (await client.invoke(addr, send_request("t", b"first"))).code == ResponseCode.SUCCESS
        for command in FOR_ANOTHER:
            answer = await client.invoke(addr, command)
            assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE, command
            assert "this is broker broker-a" in (answer.remark or "")
        end = await client.invoke(addr, Command(GET_MAX_OFFSET.code, {**QUEUE, "bname": "broker-a"}))
        assert int((end.ext or {})["offset"]) == 1
        asked = Command(QUERY_CONSUMER_OFFSET.code, {**QUEUE, "consumerGroup": "g"})
        assert int(((await client.invoke(addr, asked)).ext or {})["offset"]) == 0


@pytest.mark.parametrize("name", [None, "", "broker-a", "__syslo__global__", "__syslo__none__"])
async def test_a_request_that_names_this_broker_or_none_is_served(name: str | None) -> None:
    send, pull = send_request("t", b"x"), pull_request("t", 0)
    for command, field in ((send, "n"), (pull, "bname")):
        assert command.ext is not None
        command.ext.pop(field, None)
        if name is not None:
            command.ext[field] = name
    async with running() as (client, addr):
        assert (await client.invoke(addr, send)).code == ResponseCode.SUCCESS
        assert (await client.invoke(addr, pull)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("told", [7, True, 2.5, ["broker-a"], b"broker-a", "x" * 100_000])
def test_a_name_that_is_none_is_refused_in_few_words(told: Any) -> None:
    with pytest.raises(RequestRefused) as caught:
        check_broker_name(told, "broker-a")
    assert len(caught.value.remark) < 400


async def test_no_recorded_request_of_an_official_client_is_refused() -> None:
    served: list[int] = []

    def handler(channel: Channel, request: Command) -> None:
        served.append(request.code)

    channel = Caller().channel
    names, sends = BrokerNames("broker-a"), 0
    for each in recorded("java_json", "java_rocketmq", "java_5.3.3", "cpp", "admin_4.9.8", "admin_5.3.3"):
        if each.is_request and each.request_code in NAME_THE_BROKER:
            hook = names.hook(each.request_code)
            assert hook is not None
            hooked(handler, [hook])(channel, each.command)
        if each.is_request and each.request_code in (10, 310, 320):
            ext = each.command.ext or {}
            check_broker_name(ext.get("n", ext.get("brokerName", "")), "broker-a")
            sends += 1
    assert len(served) > 20
    assert sends > 5


async def test_the_first_answer_tells_a_skylark_client_the_brokers_name() -> None:
    async with running() as (client, addr):
        first = await client.invoke(addr, Command(GET_BROKER_RUNTIME_INFO.code))
        assert (first.ext or {}).get("brokerName") == "broker-a"
        assert client.speaks_cbor(addr)
        later = await client.invoke(addr, Command(GET_BROKER_RUNTIME_INFO.code))
        assert "brokerName" not in (later.ext or {})
