"""The keys of broker.conf that are new in RocketMQ 5.4 and 5.5, with their defaults and with odd values.

Each key is served, ignored with a warning, or refused when its value would hide a part of the store.
"""

from pathlib import Path

import pytest

from skylark.broker.ignored_keys import LIMITED_KEYS
from skylark.broker.options import BrokerOptions
from skylark.mqcommon.errors import ConfigError
from skylark.mqcommon.options.conf_file import load_conf
from skylark.mqcommon.options.fields import options_of
from skylark.namesrv.controller.options import ControllerDaemonOptions
from skylark.namesrv.options import NamesrvOptions
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.brokers import UPDATE_BROKER_CONFIG
from tests.broker.desk import Desk

# key, default, odd value; "-" for an empty value
SERVED = """
popFromRetryProbabilityForPriority 0 100
priorityOrderAsc true false
useSeparateRetryQueue false true
"""
REFUSED = """
combineAssignOffsetCQType default defaultRocksDB
combineCQLoadingCQTypes default;defaultRocksDB defaultRocksDB
combineCQPreferCQType default defaultRocksDB
combineCQUseRocksdbForLmq false true
indexFileReadEnable true false
indexFileWriteEnable true false
readOnlyCommitLogStorePaths - /mnt/old/commitlog
timerRocksDBEnable false true
transRocksDBEnable false true
"""
IGNORED = """
appendTopicForTimerDeleteKey false true
batchDeleteSubscriptionGroupMaxRate 10.0 0.5
batchDeleteTopicMaxRate 10.0 0.5
checkCommitLogOffsetOnRecover false true
combineCQEnableCheckSelf false true
combineCQMaxExtraSearchCommitLogFiles 3 0
commitLogRecoverMaxNum 10 1
correctMinOffsetMadviseEnable false true
enableAcceleratedRecovery false true
enableConnectionMetrics true false
enableLagAndDlqMetrics true false
enableLiteEventMode true false
enableLitePopLog false true
enableLmqQuota false true
enableLogConsumeQueueRepeatedlyBuildWhenRecover false true
enableMessageStoreMetrics true false
enablePopMetrics true false
enableRemotingMetrics true false
enableRequestMetrics true false
enableRunningFlagsInFlush false true
enableSplitMetadata true false
enableStatsMetrics true false
enableTransactionMetrics true false
indexRocksDBEnable false true
iteratorWhenUseRocksdbConsumeQueue true false
liteEventCapacityCacheTtlMs 5000 0
liteEventCheckInterval 10000 1
liteEventFullDispatchDelayTime 10000 1
liteEventFullDispatchDelayTimeForWildcardGroup 10000 1
liteLagCountMetricsEnable false true
liteLagLatencyCollectEnable false true
liteLagLatencyMetricsEnable false true
liteLagLatencyTopK 50 0
liteSubscriptionCheckInterval 120000 1
liteSubscriptionCheckTimeoutMills 180000 1
liteTtlCheckInterval 120000 1
maxClientEventCount 100 0
maxLiteSubscriptionCount 100000 0
maxMessageFilterNumForNotification 64 0
maxRocksDBIndexQueryDays 7 0
metricsExportBatchMaxConcurrent 4 1
metricsExportBatchMaxDataPoints 1000 1
metricsExportBatchSplitEnabled true false
metricsExportOtelMemoryMode IMMUTABLE_DATA REUSABLE_DATA
minLiteTTl 900000 1
persistConsumerOffsetIncrementally false true
popOrderLockTimerTickMs 100 1
popOrderLockTimerTicksPerWheel 512 1
popPollingMapExpireTimeSeconds 600 1
popReviveConcurrency 32 1
popReviveSkipIfGroupAbsent true false
popRocksdbBlockCacheSize 268435456 1
rocksdbCQSelectiveDoubleWriteEnable false true
sharedByteBufferNum 16 0
splitMetadataSize 2000 1
tieredStoreFilePath - /mnt/tiered
timerRecallToTimeWheelEnable true false
timerRecallToTimelineEnable true false
timerRocksDBPrecisionMs 1000 1
timerRocksDBRollIntervalHours 1 0
timerRocksDBRollMaxTps 8000.0 0
timerRocksDBRollRangeHours 2 0
timerRocksDBStopScan false true
timerRocksDBTimeExpiredMaxTps 200000.0 0
timerWheelSnapshotFlush false true
timerWheelSnapshotIntervalMs 10000 1
transWriteOriginTransHalfEnable true false
transactionCheckRocksdbCoreThreads 2 0
transactionCheckRocksdbMaxThreads 5 0
transactionCheckRocksdbQueueCapacity 2000 0
useMessageFilterForNotification true false
useSeparateStorePathForRocksdbCQ false true
useSingleRocksDBForAllConfigs false true
writeWithoutMmap false true
"""
# Keys of RocketMQ's Netty client, which its NameServers and Controllers read from their conf files.
NETTY = """
channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds
clientWorkerThreads connectTimeoutMillis disableNettyWorkerGroup enableReconnectForGoAway socksProxyConfig
"""


def rows(table: str) -> list[tuple[str, str, str]]:
    """Key, default and odd value of each row."""
    found = []
    for row in table.strip().splitlines():
        key, default, odd = ("" if part == "-" else part for part in row.split())
        found.append((key, default, odd))
    return found


def load(tmp_path: Path, text: str, warnings: list[str] | None = None) -> BrokerOptions:
    path = tmp_path / "broker.conf"
    path.write_text(text)
    return load_conf(BrokerOptions, path, environ={}, warnings=warnings)


def test_a_conf_file_with_the_defaults_of_all_keys_starts(tmp_path: Path) -> None:
    every = rows(SERVED) + rows(REFUSED) + rows(IGNORED)
    warnings: list[str] = []
    options = load(tmp_path, "".join(f"{key}={default}\n" for key, default, _ in every), warnings)
    # Only keys without effect give warnings; a key that would be refused says what Skylark does anyway.
    assert len(warnings) == len(rows(IGNORED))
    by_key = {o.key: getattr(options, o.name) for o in options_of(BrokerOptions)}
    for key, default, _ in rows(SERVED):
        assert str(by_key[key]).lower() == default


@pytest.mark.parametrize(("key", "default", "odd"), rows(SERVED))
def test_a_served_key_has_an_effect(tmp_path: Path, key: str, default: str, odd: str) -> None:
    warnings: list[str] = []
    options = load(tmp_path, f"{key}={odd}", warnings)
    by_key = {o.key: getattr(options, o.name) for o in options_of(BrokerOptions)}
    assert (str(by_key[key]).lower(), warnings) == (odd, [])


@pytest.mark.parametrize(("key", "default", "odd"), rows(REFUSED))
def test_a_value_that_would_hide_messages_is_refused_with_a_way_out(
    tmp_path: Path, key: str, default: str, odd: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, f"listenPort=0\n{key}={odd}")
    text = str(refused.value)
    assert f"broker.conf:2: {key}={odd}: " in text
    assert "set it to" in text or "leave it out" in text or "add default" in text


def test_odd_values_of_ignored_keys_give_a_warning_each(tmp_path: Path) -> None:
    warnings: list[str] = []
    load(tmp_path, "".join(f"{key}={odd}\n" for key, _, odd in rows(IGNORED)), warnings)
    assert [warning.split(": ")[1] for warning in warnings] == [key for key, _, _ in rows(IGNORED)]


def test_an_unknown_key_still_ends_the_start_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key; did you mean priorityOrderAsc"):
        load(tmp_path, "priorityOrderAscending=true")


def test_a_key_is_either_ignored_or_limited() -> None:
    assert not LIMITED_KEYS.keys() & BrokerOptions.ignored_keys


@pytest.mark.parametrize("options", [NamesrvOptions, ControllerDaemonOptions])
def test_namesrv_and_controller_ignore_the_keys_of_the_netty_client(
    options: type[NamesrvOptions | ControllerDaemonOptions],
) -> None:
    assert not set(NETTY.split()) - options.ignored_keys


async def test_a_running_broker_refuses_the_same_values() -> None:
    desk = Desk()
    refused = await desk.ask(UPDATE_BROKER_CONFIG.code, body=b"timerRocksDBEnable=true\n")
    assert "the messages that wait there for their time would be lost" in (refused.remark or "")
    kept = await desk.ask(UPDATE_BROKER_CONFIG.code, body=b"timerRocksDBEnable=false\nstoreType=default\n")
    assert (kept.code, kept.remark) == (ResponseCode.SUCCESS, None)
