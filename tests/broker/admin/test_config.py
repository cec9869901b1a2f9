"""25, 26, 28, 5001."""

import logging

import orjson
import pytest

from skylark.remoting.protocol.body import KVTable
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.brokers import (
    GET_BROKER_CONFIG,
    GET_BROKER_RUNTIME_INFO,
    SWITCH_TIMER_ENGINE,
    UPDATE_BROKER_CONFIG,
)
from tests.broker.desk import Desk
from tests.broker.meta.support import options
from tests.broker.store.support import put

UPDATE = UPDATE_BROKER_CONFIG.code
CONF = "/etc/broker.conf"

# PROTOCOL.md 15: what RocketMQ's tools look for
KEYS = """
brokerActive brokerVersionDesc brokerVersion msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow dispatchBehindBytes pageCacheLockTimeMills
earliestMessageTimeStamp startAcceptSendRequestTimeStamp timerReadBehind timerOffsetBehind timerCongestNum
timerEnqueueTps timerDequeueTps remainTransientStoreBufferNumbs remainHowManyDataToCommit remainHowManyDataToFlush
commitLogDirCapacity sendThreadPoolQueueSize sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills
pullThreadPoolQueueSize pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize
litePullThreadPoolQueueCapacity litePullThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize
queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize ackThreadPoolQueueCapacity
ackThreadPoolQueueHeadWaitTimeMills EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity bootTimestamp runtime
putMessageEntireTimeMax putMessageTimesTotal putMessageFailedTimes putMessageSizeTotal putMessageDistributeTime
putMessageAverageSize dispatchMaxBuffer getMessageEntireTimeMax putTps getFoundTps getMissTps getTotalTps
getTransferredTps putLatency99 putLatency999 commitLogDiskRatio commitLogDiskRatio_/store/commitlog
consumeQueueDiskRatio commitLogMinOffset commitLogMaxOffset
"""


async def test_options_are_shown_with_a_version() -> None:
    desk = Desk()
    answer = await desk.ask(GET_BROKER_CONFIG.code)
    lines = answer.body.decode().splitlines()
    assert "brokerName=broker-a" in lines
    assert "flushDiskType=ASYNC_FLUSH" in lines
    assert lines == sorted(lines)
    assert set(orjson.loads((answer.ext or {})["version"])) == {"counter", "stateVersion", "timestamp"}


async def test_an_option_changes_for_all_who_hold_the_options() -> None:
    desk = Desk()
    held = desk.meta.options
    answer = await desk.ask(UPDATE, body=b"fileReservedTime=71\nlongPollingEnable=false\n")
    assert answer.code == ResponseCode.SUCCESS
    assert held.file_reserved_time == 71
    assert not held.long_polling_enable
    shown = await desk.ask(GET_BROKER_CONFIG.code)
    assert b"fileReservedTime=71\n" in shown.body
    assert orjson.loads((shown.ext or {})["version"])["counter"] == 1


async def test_levels_of_loggers_change_at_once() -> None:
    desk = Desk()
    logger = logging.getLogger("skylark_test_admin_config")
    assert (await desk.ask(UPDATE, body=f"logLevels={logger.name}\\=ERROR".encode())).code == ResponseCode.SUCCESS
    assert logger.level == logging.ERROR
    refused = await desk.ask(UPDATE, body=b"logLevels=broker\\=LOUD")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark is not None
    assert "LOUD" in refused.remark
    assert (await desk.ask(UPDATE, body=b"logLevels=")).code == ResponseCode.SUCCESS
    assert logger.level == logging.NOTSET


async def test_changes_are_kept_in_the_conf_file() -> None:
    desk = Desk(options(broker_config_path=CONF))
    desk.meta.fs.overwrite(CONF, b"# mine\nbrokerName=broker-a\nfileReservedTime=48\n")
    await desk.ask(UPDATE, body=b"fileReservedTime=71\n")
    assert desk.meta.fs.read(CONF) == b"# mine\nbrokerName=broker-a\nfileReservedTime=71\n"


async def test_a_change_that_cannot_be_kept_does_not_happen() -> None:
    desk = Desk(options(broker_config_path=CONF))
    desk.meta.fs.overwrite(CONF, b"")
    desk.meta.fs.faults.fail("rename")
    answer = await desk.ask(UPDATE, body=b"fileReservedTime=71\n")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "could not be written" in (answer.remark or "")
    assert desk.meta.options.file_reserved_time == 72


@pytest.mark.parametrize(
    ("body", "code", "remark"),
    [
        (b"configBlackList=x\n", ResponseCode.NO_PERMISSION, "Can not update config in black list."),
        (b"brokerConfigPath=/tmp/x\n", ResponseCode.NO_PERMISSION, "Can not update config in black list."),
        (b"fileReservedTim=1\n", ResponseCode.SYSTEM_ERROR, "did you mean fileReservedTime?"),
        (b"fileReservedTime=soon\n", ResponseCode.SYSTEM_ERROR, "is not an integer"),
        (b"listenPort=1\n", ResponseCode.SYSTEM_ERROR, "cannot change while running"),
        (b"\xff\xff", ResponseCode.SYSTEM_ERROR, "string2Properties error"),
        (b"brokerIP1=" + b"x" * 10_000_000, ResponseCode.SYSTEM_ERROR, "the options have 10000010 bytes"),
    ],
)
async def test_a_wrong_change_of_options_is_refused(body: bytes, code: int, remark: str) -> None:
    desk = Desk()
    answer = await desk.ask(UPDATE, body=body)
    assert answer.code == code
    assert remark in (answer.remark or "")


async def test_the_keys_that_exportconfigs_and_exportmetrics_read_are_all_there() -> None:
    read = {
        "brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime", "filterServerNums",
        "flushDiskType", "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn",
        "traceTopicEnable", "useTLS", "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
        "clientCallbackExecutorThreads",
    }  # fmt: skip
    answer = await Desk().ask(GET_BROKER_CONFIG.code)
    pairs = [line.partition("=") for line in answer.body.decode().splitlines()]
    config = {key: value for key, _, value in pairs}
    assert read - config.keys() == set()
    assert int(config["clientCallbackExecutorThreads"]) >= 1
    assert [key for key, _, _ in pairs] == sorted(config), "sorted, each once"


async def test_rocketmqs_other_keys_are_taken_without_effect() -> None:
    desk = Desk()
    body = b"highSpeedMode=false\nfileReservedTime=71\ndeleteWhen=04;\\t16\n"
    assert (await desk.ask(UPDATE, body=body)).code == ResponseCode.SUCCESS
    assert desk.meta.options.file_reserved_time == 71
    assert desk.meta.options.delete_when == "04;\t16"
    assert (await desk.ask(UPDATE, body=b"")).code == ResponseCode.SUCCESS


async def test_a_changed_permission_is_told_to_nameservers() -> None:
    desk = Desk()
    told: list[bool] = []
    desk.meta.topics.on_change.append(lambda: told.append(True))
    await desk.ask(UPDATE, body=b"brokerPermission=4\n")
    assert told == [True]


@pytest.mark.parametrize("codec", [0, CBOR])
async def test_runtime_info_has_all_of_rocketmqs_keys_as_text(codec: int) -> None:
    desk = Desk()
    put(desk.store, "T", 0, b"body")
    desk.stats.put("T", 1, 100)
    desk.stats.get("g", "T", 1, 100)
    desk.stats.miss()
    desk.clock.advance(90_061_000)
    answer = await desk.ask(GET_BROKER_RUNTIME_INFO.code, codec=codec)
    table = decode_body(KVTable, answer.body, codec).table
    assert set(KEYS.split()) <= set(table)
    assert all(isinstance(value, str) for value in table.values())
    assert table["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert table["brokerVersionDesc"] == "V5_3_3"
    assert table["msgPutTotalTodayNow"] == "1"
    assert table["putMessageTimesTotal"] == "1"
    assert table["commitLogMaxOffset"] == str(desk.store.log.end)
    assert table["remainHowManyDataToFlush"].endswith(" B")
    assert len(table["putTps"].split(" ")) == 3
    assert table["commitLogDirCapacity"].startswith("Total : 1.0 TiB, Free : ")


@pytest.mark.parametrize(
    ("engine", "timers", "words"),
    [
        ({"E_T": "R"}, True, "this broker has no timers in RocksDB"),
        ({"E_T": "X"}, True, "is F or R, not X"),
        ({}, True, "is F or R, not None"),
        ({"E_T": "F"}, False, "timerWheelEnable=false"),
    ],
)
async def test_a_switch_to_an_engine_of_timers_that_is_not_there(
    engine: dict[str, str], timers: bool, words: str
) -> None:
    desk = Desk(options(timer_wheel_enable=timers))
    answer = await desk.ask(SWITCH_TIMER_ENGINE.code, engine)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert words in (answer.remark or "")


async def test_a_switch_to_the_engine_that_is_used_has_nothing_to_do() -> None:
    answer = await Desk().ask(SWITCH_TIMER_ENGINE.code, {"E_T": "F"})
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "switch timer engine success")
