"""A slave takes nothing from clients that its master does not have, and says so as RocketMQ does."""

import pytest

from mqcommon.message.batch import encode_batch
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.requests.brokers import GET_BROKER_CONFIG, GET_BROKER_RUNTIME_INFO
from remoting.protocol.requests.consuming import CONSUMER_SEND_MSG_BACK
from remoting.protocol.requests.groups import (
    DELETE_SUBSCRIPTIONGROUP,
    SET_MESSAGE_REQUEST_MODE,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
)
from remoting.protocol.requests.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE
from remoting.protocol.requests.topics import (
    DELETE_TOPIC_IN_BROKER,
    GET_TOPIC_CONFIG,
    UPDATE_AND_CREATE_TOPIC,
    UPDATE_AND_CREATE_TOPIC_LIST,
)
from remoting.protocol.requests.transactions import END_TRANSACTION, RESUME_CHECK_HALF_MESSAGE
from tests.broker.running import pull_request, running, send_request
from tests.support.memory_files import MemoryFiles

BATCH = send_request("t", encode_batch([(0, b"x", b"")]))
BATCH.code = SEND_BATCH_MESSAGE.code
TO_SLAVE = (ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now")
CHANGE = (ResponseCode.SYSTEM_ERROR, "Can't modify topic or subscription group from slave broker, please execute it")


@pytest.mark.parametrize(
    ("command", "code_and_text"),
    [
        (send_request("t", b"x"), TO_SLAVE),
        (send_request("t", b"x", properties="WAIT\x01false\x02"), TO_SLAVE),
        (Command(SEND_MESSAGE.code, {}), TO_SLAVE),
        (BATCH, TO_SLAVE),
        (Command(CONSUMER_SEND_MSG_BACK.code, {}), TO_SLAVE),
        (Command(END_TRANSACTION.code, {}), (ResponseCode.SLAVE_NOT_AVAILABLE, "end transaction is forbidden")),
        (Command(RESUME_CHECK_HALF_MESSAGE.code, {}), (ResponseCode.SERVICE_NOT_AVAILABLE, "put to the slave")),
        (Command(UPDATE_AND_CREATE_TOPIC.code, {"topic": "t"}), CHANGE),
        (Command(UPDATE_AND_CREATE_TOPIC_LIST.code, {}), CHANGE),
        (Command(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.code, {}), CHANGE),
        (Command(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.code, {}), CHANGE),
        (Command(SET_MESSAGE_REQUEST_MODE.code, {}), CHANGE),
        (Command(DELETE_SUBSCRIPTIONGROUP.code, {"groupName": "g"}), CHANGE),
    ],
)
async def test_what_a_slave_refuses(command: Command, code_and_text: tuple[int, str]) -> None:
    async with running(broker_role="SLAVE", broker_id=1) as (client, addr):
        answer = await client.invoke(addr, command)
        assert answer.code == code_and_text[0]
        assert code_and_text[1] in (answer.remark or "")
        info = await client.invoke(addr, Command(GET_BROKER_RUNTIME_INFO.code))
        assert b'"commitLogMaxOffset":"0"' in info.body or b"commitLogMaxOffset\x610" in info.body


async def test_its_options_can_be_read() -> None:
    async with running(broker_role="SLAVE", broker_id=1) as (client, addr):
        config = (await client.invoke(addr, Command(GET_BROKER_CONFIG.code))).body.decode()
        assert "brokerRole=SLAVE\n" in config and "brokerId=1\n" in config


@pytest.mark.parametrize("topic", ["t", "%RETRY%g", "%DLQ%g"])
async def test_a_deletion_is_accepted_and_left_to_the_master(topic: str) -> None:
    """mqadmin's deleteTopic and deleteSubGroup -c go to masters and slaves, and stop where one refuses."""
    fs = MemoryFiles()
    async with running(fs) as (client, addr):
        assert (await client.invoke(addr, send_request(topic, b"x"))).code == ResponseCode.SUCCESS
    async with running(fs, broker_role="SLAVE", broker_id=1) as (client, addr):
        answer = await client.invoke(addr, Command(DELETE_TOPIC_IN_BROKER.code, {"topic": topic}))
        assert answer.code == ResponseCode.SUCCESS
        known = await client.invoke(addr, Command(GET_TOPIC_CONFIG.code, {"topic": topic}))
        assert known.code == ResponseCode.SUCCESS
        assert b"x" in (await client.invoke(addr, pull_request(topic, 0))).body


@pytest.mark.parametrize("topic", ["%RETRY%" + "x" * 300, "a/b", "TBW102"])
async def test_what_a_master_would_not_delete_is_refused(topic: str) -> None:
    async with running(broker_role="SLAVE", broker_id=1) as (client, addr):
        answer = await client.invoke(addr, Command(DELETE_TOPIC_IN_BROKER.code, {"topic": topic}))
        assert answer.code != ResponseCode.SUCCESS
