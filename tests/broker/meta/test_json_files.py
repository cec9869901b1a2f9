"""RocketMQ's metadata files: taken over once and whole, kept to the last field, and given back as they were."""

import json
import re
from dataclasses import replace
from os.path import normpath
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.meta.json_files import (
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    GROUPS,
    STATIC_TOPICS,
    TOPICS,
    parse,
    to_json_files,
)
from skylark.broker.meta.metadata import Metadata
from skylark.mqcommon.errors import DiskFull, StoreCorrupt, UserError
from skylark.remoting.protocol.logical_queues import led_by
from skylark.remoting.protocol.requests.groups import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    MessageRequestMode,
    SimpleSubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from skylark.remoting.protocol.requests.offsets import ConsumerOffsetTable, DelayOffsetTable
from skylark.remoting.protocol.requests.topics import StaticTopicTable, TopicConfig, TopicConfigTable
from tests.broker.meta.support import DIRECTORY, MetadataDir, options
from tests.support.amounts import share_of
from tests.support.golden_store import VERSIONS, unpack
from tests.support.memory_files import MemoryFiles

# A broker writes messageRequestMode.json with the first mode only.
NAMES = (TOPICS, GROUPS, CONSUMER_OFFSETS, DELAY_OFFSETS)


class PowerLoss(Exception):
    """Raised in the middle of the import."""


def java_files(version: str, home: Path) -> MemoryFiles:
    """The config directory of a golden store."""
    fs = MemoryFiles()
    for file in (unpack(version, home) / "config").iterdir():
        fs.overwrite(f"{DIRECTORY}/{file.name}", file.read_bytes())
    return fs


def with_files(**files: str) -> MemoryFiles:
    fs = MemoryFiles()
    for name, text in files.items():
        fs.overwrite(f"{DIRECTORY}/{name.replace('_', '.')}", text.encode())
    return fs


def exported(metadata: Metadata) -> dict[str, bytes]:
    return to_json_files(
        metadata.topics, metadata.groups, metadata.consumer_offsets, metadata.delay_offsets, metadata.request_modes
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_java_brokers_metadata_is_there_and_told_in_one_line(version: str, tmp_path: Path) -> None:
    meta = MetadataDir(options(broker_name="broker-g"), fs=java_files(version, tmp_path))
    config = meta.topics.get("GoldenA")
    assert config == TopicConfig("GoldenA", 4, 4)
    assert meta.topics.get("%RETRY%golden_group") == TopicConfig("%RETRY%golden_group", 1, 1)
    assert meta.groups.get("golden_group") == SubscriptionGroupConfig("golden_group")
    assert meta.offsets.query("golden_group", "GoldenA", 0) == 13
    offsets = len(meta.offsets.table()["GoldenA@golden_group"])
    topics, groups = {"4.9.8": (13, 8), "5.3.3": (16, 9)}[version]
    assert meta.report.imported == (
        f"{topics} topics, {groups} groups, {offsets} consumer offsets, 0 delay offsets "
        f"from RocketMQ's files in {DIRECTORY}"
    )
    assert meta.report.warnings == []


@pytest.mark.parametrize("version", VERSIONS)
def test_system_topics_stay_as_the_java_broker_had_them(version: str, tmp_path: Path) -> None:
    meta = MetadataDir(options(broker_name="broker-g", default_topic_queue_nums=8), fs=java_files(version, tmp_path))
    assert meta.topics.get("TBW102") == TopicConfig("TBW102", 4, 4, 7)
    assert all(meta.topics.is_system(name) for name in ("TBW102", "DefaultCluster", "broker-g", "BenchmarkTest"))
    assert not meta.topics.is_system("GoldenA")
    assert meta.topics.get("RMQ_SYS_TRANS_OP_HALF_TOPIC") is not None


def test_imported_files_are_exported_byte_for_byte(tmp_path: Path) -> None:
    fs = java_files("5.3.3", tmp_path)
    before = {name: fs.read(f"{DIRECTORY}/{name}") for name in NAMES}
    MetadataDir(fs=fs)
    recovered = Metadata(fs.killed(), DIRECTORY, MetadataDir().clock, options())
    recovered.recover()
    assert exported(recovered) == before


def test_files_of_4_9_are_exported_with_the_fields_of_5_x(tmp_path: Path) -> None:
    fs = java_files("4.9.8", tmp_path)
    meta = MetadataDir(fs=fs)
    recovered = Metadata(fs.killed(), DIRECTORY, meta.clock, options())
    recovered.recover()
    after = exported(recovered)
    for name, cls in zip(NAMES, (TopicConfigTable, SubscriptionGroupTable), strict=False):
        assert parse(cls, after[name]) == parse(cls, fs.read(f"{DIRECTORY}/{name}"))
    before = parse(ConsumerOffsetTable, fs.read(f"{DIRECTORY}/consumerOffset.json"))
    before.group_topic_map = {"golden_group": ["GoldenA"]}
    assert parse(ConsumerOffsetTable, after["consumerOffset.json"]) == before
    assert list(json.loads(after["topics.json"])["topicConfigTable"]) == list(
        json.loads(fs.read(f"{DIRECTORY}/topics.json"))["topicConfigTable"]
    )


def test_every_field_survives_import_restart_and_export() -> None:
    topic = TopicConfig("T", 3, 5, 4, "MULTI_TAG", 2, True, {"message.type": "FIFO", "max.message.size": "9"})
    group = SubscriptionGroupConfig(
        "g", False, False, False, True, 2, 3,
        GroupRetryPolicy("CUSTOMIZED", None, CustomizedRetryPolicy([1000, 5000])),
        4, 5, False, 6, 7, [SimpleSubscriptionData("T", "TAG", "a || b", 8)], {"key": "value"},
    )  # fmt: skip
    version = {"counter": 7, "stateVersion": 3, "timestamp": 1_600_000_000_000}
    files = {
        "topics.json": {"dataVersion": version, "topicConfigTable": {"T": topic.to_wire()}},
        "subscriptionGroup.json": {
            "dataVersion": version,
            "forbiddenTable": {"g": {"T": 1}},
            "subscriptionGroupTable": {"g": group.to_wire()},
        },
        "consumerOffset.json": {
            "dataVersion": version,
            "groupTopicMap": {"g": ["T"]},
            "offsetTable": {"T@g": {"0": 5}, "%RETRY%g@g": {"0": 1}},
        },
        "delayOffset.json": {"dataVersion": version, "offsetTable": {"1": 100, "18": 7}},
        "messageRequestMode.json": {
            "messageRequestModeMap": {
                "T": {"g": {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": -1, "topic": "T"}}
            }
        },
    }
    fs = MemoryFiles()
    for name, content in files.items():
        fs.overwrite(f"{DIRECTORY}/{name}", json.dumps(content).encode())
    meta = MetadataDir(fs=fs)
    meta.kill()
    assert meta.topics.get("T") == topic
    assert meta.groups.get("g") == group
    assert meta.groups.forbidden == {"g": {"T": 1}}
    assert meta.offsets.table() == {"T@g": {0: 5}, "%RETRY%g@g": {0: 1}}
    assert meta.metadata.delay_offsets.table.offset_table == {1: 100, 18: 7}
    # NameServers take a version of the same epoch that is another one.
    assert meta.topics.data_version.state_version == 3
    assert meta.topics.data_version.counter > 7
    recovered = Metadata(meta.fs.killed(), DIRECTORY, meta.clock, options())
    recovered.recover()
    after = exported(recovered)
    assert parse(TopicConfigTable, after["topics.json"]).to_wire()["topicConfigTable"] == {"T": topic.to_wire()}
    assert b'"retryMaxTimes":3' in after["subscriptionGroup.json"]
    assert json.loads(after["subscriptionGroup.json"]) == files["subscriptionGroup.json"]
    assert json.loads(after["topics.json"]) == files["topics.json"]
    assert json.loads(after["messageRequestMode.json"]) == files["messageRequestMode.json"]
    assert after["delayOffset.json"].decode().endswith('"offsetTable":{1:100,18:7\n\t}\n}')
    assert '"groupTopicMap":{\n\t\t"g":["T","%RETRY%g"]\n\t}' in after["consumerOffset.json"].decode()


def test_changes_after_the_import_are_exported_with_a_higher_version() -> None:
    meta = MetadataDir(fs=with_files(topics_json='{"dataVersion":{"counter":5,"timestamp":9},"topicConfigTable":{}}'))
    meta.topics.put(TopicConfig("T"))
    meta.offsets.commit("g", "T", 0, 7)
    meta.offsets.append_changed(meta.offsets.pop_changed())
    recovered = Metadata(meta.fs.killed(), DIRECTORY, meta.clock, options())
    recovered.recover()
    after = {name: json.loads(data) for name, data in exported(recovered).items() if name != "consumerOffset.json"}
    assert after["topics.json"]["dataVersion"]["counter"] == 6
    assert list(after["topics.json"]["topicConfigTable"]) == ["T"]
    assert recovered.consumer_offsets.data_version.counter == 1


@pytest.mark.parametrize("main", [None, b"", b'{"offsetTable":{', b"[1]"])
def test_a_broken_file_is_replaced_by_its_backup(main: bytes | None) -> None:
    fs = with_files(consumerOffset_json_bak='{"offsetTable":{"T@g":{0:7}}}')
    if main is not None:
        fs.overwrite(f"{DIRECTORY}/consumerOffset.json", main)
    meta = MetadataDir(fs=fs)
    assert meta.offsets.query("g", "T", 0) == 7
    assert meta.report.warnings == [f"{DIRECTORY}/consumerOffset.json could not be read, its .bak was used"]


@pytest.mark.parametrize("text", ["", '{"topicConfigTable":{', '{"topicConfigTable":[]}', "\x00\x00"])
def test_a_broken_file_without_a_backup_stops_and_names_itself_and_nothing_is_taken(text: str) -> None:
    fs = with_files(topics_json=text, consumerOffset_json='{"offsetTable":{"T@g":{0:7}}}')
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match=r"^/store/config/topics\.json .*replace it by a good copy") as caught:
            MetadataDir(fs=fs)
        assert "\n" not in str(caught.value)
        fs = fs.killed()
    fs.overwrite(f"{DIRECTORY}/topics.json", b'{"topicConfigTable":{"T":{"topicName":"T"}}}')
    meta = MetadataDir(fs=fs)
    assert meta.topics.get("T") is not None
    assert meta.offsets.query("g", "T", 0) == 7


def test_metadata_in_rocksdb_stops() -> None:
    fs = MemoryFiles()
    fs.mkdirs(f"{DIRECTORY}/topics")
    with pytest.raises(UserError, match=r"RocksDB.*export it"):
        MetadataDir(fs=fs)


def test_a_crash_in_the_import_leaves_nothing_or_all(tmp_path: Path) -> None:
    image = java_files("5.3.3", tmp_path)

    seeds = [Random(seed) for seed in range(2)]
    for crash_at in share_of(range(1, 400), 5):
        fs = image.killed()
        calls = 0

        def before_call(operation: str, path: str, fs: MemoryFiles = fs, crash_at: int = crash_at) -> None:
            nonlocal calls
            calls += 1
            if calls == crash_at:
                raise PowerLoss

        fs.before_call = before_call
        try:
            MetadataDir(fs=fs)
        except PowerLoss:
            pass
        else:
            break
        for after in [fs.killed(), *(fs.crash(seed) for seed in seeds)]:
            meta = MetadataDir(fs=after)
            assert meta.topics.get("GoldenA") is not None
            assert len(meta.offsets.table()["GoldenA@golden_group"]) == 3
            assert len(meta.groups.persistent()) == 9
    assert 50 < crash_at < 399


def test_a_full_disk_at_the_import_stops_and_the_next_start_imports(tmp_path: Path) -> None:
    fs = java_files("4.9.8", tmp_path)
    fs.capacity = fs.used() + 1000
    with pytest.raises(Exception, match="no room") as caught:
        MetadataDir(fs=fs)
    assert isinstance(caught.value, DiskFull) or isinstance(caught.value.__cause__, DiskFull)
    fs = fs.killed()
    fs.capacity = 1 << 30
    assert MetadataDir(fs=fs).topics.get("GoldenA") is not None


def test_the_import_is_durable_before_anything_is_served(tmp_path: Path) -> None:
    meta = MetadataDir(fs=java_files("5.3.3", tmp_path))
    for name in NAMES:
        meta.fs.remove(f"{DIRECTORY}/{name}")
    for seed in range(10):
        meta.power_loss(seed)
        assert meta.topics.get("GoldenB") is not None
        assert meta.report.imported == ""


def test_the_files_stay_and_are_not_read_again() -> None:
    fs = with_files(topics_json='{"topicConfigTable":{"T":{"topicName":"T"}}}')
    meta = MetadataDir(fs=fs)
    meta.topics.delete("T")
    meta.kill()
    assert meta.topics.get("T") is None
    assert meta.report.imported == ""
    assert meta.report.warnings == []
    assert meta.fs.exists(f"{DIRECTORY}/topics.json")


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_file_that_somebody_else_changed_is_told_and_not_mixed_in(restarts: int) -> None:
    meta = MetadataDir(fs=with_files(consumerOffset_json='{"offsetTable":{"T@g":{0:7}}}'))
    for _ in range(restarts):
        meta.kill()
    meta.fs.overwrite(f"{DIRECTORY}/consumerOffset.json", b'{"offsetTable":{"T@g":{0:9}}}')
    for _ in range(2):
        meta.kill()
        assert meta.offsets.query("g", "T", 0) == 7
        (warning,) = meta.report.warnings
        assert warning.startswith(f"consumerOffset.json in {DIRECTORY} changed since Skylark last read or wrote them")
        assert "broker importMetadata STORE_DIR" in warning
        assert "broker exportMetadata STORE_DIR" in warning


def test_offsets_of_pops_are_those_of_the_next_record_here_and_of_the_last_one_there() -> None:
    revive, pops = "rmq_sys_REVIVE_LOG_C@CID_RMQ_SYS_REVIVE_GROUP", "rmq_sys_wheel_timer@CID_RMQ_SYS_REVIVE_GROUP"
    fs = with_files(
        topics_json='{"topicConfigTable":{"rmq_sys_REVIVE_LOG_C":{}}}',
        consumerOffset_json=f'{{"offsetTable":{{"{revive}":{{0:0,5:7}}}}}}',
    )
    meta = MetadataDir(fs=fs)
    assert meta.offsets.table() == {revive: {0: 1, 5: 8}, pops: {0: 0}}
    assert parse(ConsumerOffsetTable, exported(meta.metadata)[CONSUMER_OFFSETS]).offset_table == {revive: {0: 0, 5: 7}}


# As RocketMQ writes it, whose ids are not quoted.
STATIC = """{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":5},"topicQueueMappingInfoMap":{"S":{
"bname":"broker-a",
"currIdMap":{0:0},"dirty":false,"epoch":77,"hostedQueues":{0:[{"bname":"broker-a","endOffset":-1,"gen":0,"logicOffset":0,
"queueId":0,"startOffset":0,"timeOfEnd":-1,"timeOfStart":-1}],1:[{"bname":"broker-a","endOffset":-1,"gen":0,
"logicOffset":0,"queueId":1,"startOffset":0,"timeOfEnd":-1,"timeOfStart":-1},{"bname":"broker-b","endOffset":-1,"gen":1,
"logicOffset":10000,"queueId":0,"startOffset":0,"timeOfEnd":-1,"timeOfStart":-1}]},"scope":"__global__","topic":"S",
"totalQueues":2}}}"""


def test_static_topics_are_taken_over_and_given_back() -> None:
    topics = '{"dataVersion":{"counter":3,"timestamp":5},"topicConfigTable":{"S":{"topicName":"S"}}}'
    meta = MetadataDir(fs=with_files(topics_json=topics, topicQueueMapping_json=STATIC))
    row = meta.topics.static.get("S")
    assert row is not None
    assert led_by(row) == {0: 0}
    assert [stretch.logic_offset for stretch in row.hosted_queues[1]] == [0, 10_000]
    meta.power_loss()
    assert meta.topics.static.get("S") == row
    given = parse(StaticTopicTable, exported(meta.metadata)[STATIC_TOPICS])
    assert given.topic_queue_mapping_info_map == {"S": row}
    meta.topics.delete("S")
    assert meta.topics.static.get("S") is None
    assert STATIC_TOPICS not in exported(meta.metadata)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("consumerOrderInfo.json", "{", "consumerOrderInfo.json is not imported"),
        ("consumerOrderInfo.json", '{"table":{"T@g":{0:{}}}}', "consumerOrderInfo.json is not imported"),
        ("../kvStore/CURRENT", "MANIFEST-000004", "kvStore is not read: what was popped"),
        ("lmqConsumerOffset.json", '{"offsetTable":{"%LMQ%a@g":1}}', "light message queues"),
        ("subscriptionGroup.json", '{"forbiddenTable":{"g":{"T":1}}}', "has no effect"),
        ("topics.json", '{"topicConfigTable":{"T":{"attributes":{"queue.type":"RocksCQ"}}}}', "topic T: queue.type=Ro"),
        ("topics.json", '{"topicConfigTable":{"T":{"attributes":{"lite.x":"1"}}}}', "topic T: lite.x=1 is kept"),
    ],
)
def test_a_warning_names_each_table_that_is_not_imported(name: str, text: str, told: str) -> None:
    fs = with_files(topics_json="{}")
    fs.overwrite(normpath(f"{DIRECTORY}/{name}"), text.encode())
    (warning,) = MetadataDir(fs=fs).report.warnings
    assert re.search(told, warning), warning


def test_a_large_table_in_fastjsons_dialect_is_read() -> None:
    rows = ",".join(f'"topic{number}@some-group":{{0:{number},1:7\n\t\t}}' for number in range(6_000))
    meta = MetadataDir(fs=with_files(consumerOffset_json=f'{{"offsetTable":{{{rows}}}}}'))
    assert len(meta.offsets.table()) == 6_000
    assert meta.report.imported.split(", ")[2].startswith("12000 consumer offsets")


NAMES_OF = st.text('abcXYZ019_-%|é\U0001f600"\\\n', min_size=1, max_size=12)
COUNTS = st.integers(0, 1 << 40)
TABLES = st.fixed_dictionaries(
    {
        "topics": st.dictionaries(
            NAMES_OF,
            st.builds(
                TopicConfig,
                read_queue_nums=st.integers(0, 65536),
                perm=st.integers(0, 7),
                order=st.booleans(),
                attributes=st.dictionaries(NAMES_OF, NAMES_OF, max_size=2),
            ),
            max_size=5,
        ),
        "groups": st.dictionaries(
            NAMES_OF,
            st.builds(
                SubscriptionGroupConfig,
                consume_enable=st.booleans(),
                retry_max_times=st.integers(-1, 99),
                group_retry_policy=st.builds(
                    GroupRetryPolicy,
                    st.sampled_from(["EXPONENTIAL", "CUSTOMIZED"]),
                    st.none() | st.builds(ExponentialRetryPolicy, COUNTS, COUNTS, COUNTS),
                    st.none() | st.builds(CustomizedRetryPolicy, st.lists(COUNTS, max_size=3)),
                ),
                subscription_data_set=st.none() | st.lists(st.builds(SimpleSubscriptionData, NAMES_OF), max_size=2),
            ),
            max_size=5,
        ),
        "offsets": st.dictionaries(
            st.tuples(NAMES_OF, NAMES_OF),
            st.dictionaries(st.integers(0, 1 << 31 - 1), COUNTS, min_size=1, max_size=4),
            max_size=5,
        ),
        "delays": st.dictionaries(st.integers(1, 18), COUNTS, max_size=3),
        "modes": st.dictionaries(st.tuples(NAMES_OF, NAMES_OF), st.sampled_from(["PULL", "POP"]), max_size=3),
    }
)


@given(TABLES)
def test_any_tables_survive_export_and_import(tables: dict[str, Any]) -> None:
    meta = MetadataDir()
    for name, topic in tables["topics"].items():
        meta.topics.put(replace(topic, topic_name=name))
    for name, group in tables["groups"].items():
        meta.groups.put(replace(group, group_name=name))
    for (topic_name, group_name), queues in tables["offsets"].items():
        for queue_id, offset in queues.items():
            meta.offsets.commit(group_name, topic_name, queue_id, offset)
    meta.offsets.append_changed(meta.offsets.pop_changed())
    meta.metadata.delay_offsets.put(DelayOffsetTable(tables["delays"]))
    for (topic_name, group_name), mode in tables["modes"].items():
        meta.metadata.request_modes.put(MessageRequestMode(group_name, topic_name, mode, 7))
    other = MemoryFiles()
    for name, data in exported(meta.metadata).items():
        other.overwrite(f"{DIRECTORY}/{name}", data)
    there = MetadataDir(fs=other)
    assert there.topics.all() == meta.topics.all()
    assert there.groups.all() == meta.groups.all()
    assert there.offsets.table() == meta.offsets.table()
    assert there.metadata.delay_offsets.table.offset_table == tables["delays"]
    assert there.metadata.request_modes.all() == meta.metadata.request_modes.all()
    assert exported(there.metadata)["consumerOffset.json"] == exported(meta.metadata)["consumerOffset.json"]
