"""A slave takes nothing from clients that its master does not have, and says so as RocketMQ does."""

import pytest

from mqcommon.message.batch import encode_batch
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from tests.broker.running import pull_request, running, send_request
from tests.support.memory_files import MemoryFiles

BATCH = send_request("t", encode_batch([(0, b"x", b"")]))
BATCH.code = RequestCode.SEND_BATCH_MESSAGE
TO_SLAVE = (ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now")
CHANGE = (ResponseCode.SYSTEM_ERROR, "Can't modify topic or subscription group from slave broker, please execute it")


@pytest.mark.parametrize(
    ("command", "code_and_text"),
    [
        (send_request("t", b"x"), TO_SLAVE),
        (send_request("t", b"x", properties="WAIT\x01false\x02"), TO_SLAVE),
        (Command(RequestCode.SEND_MESSAGE, {}), TO_SLAVE),
        (BATCH, TO_SLAVE),
        (Command(RequestCode.CONSUMER_SEND_MSG_BACK, {}), TO_SLAVE),
        (Command(RequestCode.END_TRANSACTION, {}), (ResponseCode.SLAVE_NOT_AVAILABLE, "end transaction is forbidden")),
        (Command(RequestCode.RESUME_CHECK_HALF_MESSAGE, {}), (ResponseCode.SERVICE_NOT_AVAILABLE, "put to the slave")),
        (Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "t"}), CHANGE),
        (Command(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}), CHANGE),
        (Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}), CHANGE),
        (Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}), CHANGE),
        (Command(RequestCode.SET_MESSAGE_REQUEST_MODE, {}), CHANGE),
        (Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}), CHANGE),
    ],
)
async def test_what_a_slave_refuses(command: Command, code_and_text: tuple[int, str]) -> None:
    async with running(broker_role="SLAVE", broker_id=1) as (client, addr):
        answer = await client.invoke(addr, command)
        assert answer.code == code_and_text[0]
        assert code_and_text[1] in (answer.remark or "")
        info = await client.invoke(addr, Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        assert b'"commitLogMaxOffset":"0"' in info.body or b"commitLogMaxOffset\x610" in info.body


async def test_its_options_can_be_read() -> None:
    async with running(broker_role="SLAVE", broker_id=1) as (client, addr):
        config = (await client.invoke(addr, Command(RequestCode.GET_BROKER_CONFIG))).body.decode()
        assert "brokerRole=SLAVE\n" in config and "brokerId=1\n" in config


@pytest.mark.parametrize("topic", ["t", "%RETRY%g", "%DLQ%g"])
async def test_a_deletion_is_accepted_and_left_to_the_master(topic: str) -> None:
    """mqadmin's deleteTopic and deleteSubGroup -c go to masters and slaves, and stop where one refuses."""
    fs = MemoryFiles()
    async with running(fs) as (client, addr):
        assert (await client.invoke(addr, send_request(topic, b"x"))).code == ResponseCode.SUCCESS
    async with running(fs, broker_role="SLAVE", broker_id=1) as (client, addr):
        answer = await client.invoke(addr, Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))
        assert answer.code == ResponseCode.SUCCESS
        known = await client.invoke(addr, Command(RequestCode.GET_TOPIC_CONFIG, {"topic": topic}))
        assert known.code == ResponseCode.SUCCESS
        assert b"x" in (await client.invoke(addr, pull_request(topic, 0))).body


@pytest.mark.parametrize("topic", ["%RETRY%" + "x" * 300, "a/b", "TBW102"])
async def test_what_a_master_would_not_delete_is_refused(topic: str) -> None:
    async with running(broker_role="SLAVE", broker_id=1) as (client, addr):
        answer = await client.invoke(addr, Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))
        assert answer.code != ResponseCode.SUCCESS
