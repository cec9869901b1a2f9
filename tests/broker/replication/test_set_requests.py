"""Requests among the members of a set (60, 61, 402, 905, 906), and what a slave refuses, as RocketMQ's does."""

import struct

import pytest

from skylark.broker.identity import Identity
from skylark.broker.replication.known_master import KnownMaster, MasterAddress
from skylark.broker.replication.role import RoleMachine
from skylark.broker.replication.set_requests import MemberHandlers
from skylark.mqcommon.message.batch import encode_batch
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, JSON, Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.brokers import GET_BROKER_CONFIG, GET_BROKER_RUNTIME_INFO
from skylark.remoting.protocol.requests.consuming import CONSUMER_SEND_MSG_BACK
from skylark.remoting.protocol.requests.groups import (
    DELETE_SUBSCRIPTIONGROUP,
    SET_MESSAGE_REQUEST_MODE,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    MessageRequestModes,
)
from skylark.remoting.protocol.requests.registrations import NOTIFY_MIN_BROKER_ID_CHANGE
from skylark.remoting.protocol.requests.replication import (
    EXCHANGE_BROKER_HA_INFO,
    GET_ALL_MESSAGE_REQUEST_MODE,
    GET_TIMER_CHECK_POINT,
    GET_TIMER_METRICS,
    TimerMetrics,
)
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE
from skylark.remoting.protocol.requests.topics import (
    DELETE_TOPIC_IN_BROKER,
    GET_TOPIC_CONFIG,
    UPDATE_AND_CREATE_TOPIC,
    UPDATE_AND_CREATE_TOPIC_LIST,
)
from skylark.remoting.protocol.requests.transactions import END_TRANSACTION, RESUME_CHECK_HALF_MESSAGE
from tests.broker.desk import Desk
from tests.broker.running import pull_request, running, send_request
from tests.broker.store.support import open_store, put
from tests.support.caller import Caller
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles


class Set:
    """The handlers of one member."""

    def __init__(self, broker_id: int) -> None:
        self.store = open_store(MemoryFiles(), ManualClock())
        self.master = KnownMaster()
        self.asked = 0
        identity = Identity("c", "broker-a", broker_id, "127.0.0.1:10911", "127.0.0.1:10912")
        self.handlers = MemberHandlers(RoleMachine(broker_id), identity, self.store, self.master, self._ask).handlers()

    def _ask(self) -> None:
        self.asked += 1

    def told(self, code: int, **ext: object) -> Command:
        answer = self.handlers[code](Caller().channel, Command(code, ext))
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
        return answer


@pytest.mark.parametrize("broker_id", [0, 1])
async def test_a_notice_is_a_reason_to_ask_and_no_more(broker_id: int) -> None:
    one = Set(broker_id)
    one.told(NOTIFY_MIN_BROKER_ID_CHANGE.code, minBrokerId=1, brokerName="broker-a", minBrokerAddr="x:1")
    assert one.asked == 1


async def test_a_master_says_where_it_is() -> None:
    master = Set(0)
    put(master.store, "T", 0, b"1")
    answer = master.told(EXCHANGE_BROKER_HA_INFO.code)
    assert answer.ext == {
        "masterHaAddress": "127.0.0.1:10912", "masterFlushOffset": 0, "masterAddress": "127.0.0.1:10911",
    }  # fmt: skip


async def test_a_slave_goes_where_its_returning_master_is() -> None:
    slave = Set(1)
    assert slave.master is not None
    changes: list[MasterAddress | None] = []
    slave.master.on_change.append(lambda: changes.append(slave.master.address if slave.master else None))
    for _ in range(2):
        answer = slave.told(EXCHANGE_BROKER_HA_INFO.code, masterAddress="m:1", masterHaAddress="m:2")
        assert answer.ext == {}
    assert changes == [MasterAddress("m:1", "m:2")]
    assert not slave.master.registered  # that it lives, NameServers say


async def test_a_slave_that_is_asked_or_told_half_says_nothing() -> None:
    slave = Set(1)
    assert slave.told(EXCHANGE_BROKER_HA_INFO.code).ext == {}
    slave.told(EXCHANGE_BROKER_HA_INFO.code, masterAddress="m:1")
    assert slave.master is not None
    assert slave.master.address is None


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


async def test_the_timer_checkpoint_says_that_nothing_is_left_to_deliver() -> None:
    desk = Desk()
    desk.clock.advance(1_234)
    answer = await desk.ask(GET_TIMER_CHECK_POINT.code)
    assert answer.code == ResponseCode.SUCCESS
    # As Java's TimerCheckpoint.decode reads it: four longs, then the DataVersion.
    read_ms, log_pos, queue_offset, master_offset, *version = struct.unpack(">7q", answer.body)
    assert read_ms == desk.clock.now_ms() // 1000 * 1000
    assert (log_pos, queue_offset, master_offset, version) == (0, 0, 0, [0, 0, 0])


async def test_timer_metrics_are_empty() -> None:
    answer = await Desk().ask(GET_TIMER_METRICS.code)
    assert answer.body == b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"timingCount":{}}'


async def test_modes_of_consumption_are_empty() -> None:
    answer = await Desk().ask(GET_ALL_MESSAGE_REQUEST_MODE.code)
    assert answer.body == b'{"messageRequestModeMap":{}}'


@pytest.mark.parametrize("codec", [JSON, CBOR])
async def test_both_are_read_again(codec: int) -> None:
    desk = Desk()
    metrics = await desk.ask(GET_TIMER_METRICS.code, codec=codec)
    assert decode_body(TimerMetrics, metrics.body, codec) == TimerMetrics()
    modes = await desk.ask(GET_ALL_MESSAGE_REQUEST_MODE.code, codec=codec)
    assert decode_body(MessageRequestModes, modes.body, codec) == MessageRequestModes()
