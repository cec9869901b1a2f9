"""Whatever the tables hold survives an export to RocketMQ's files and the import of these."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.requests.groups import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    MessageRequestMode,
    SimpleSubscriptionData,
    SubscriptionGroupConfig,
)
from remoting.protocol.requests.offsets import DelayOffsetTable
from remoting.protocol.requests.topics import TopicConfig
from tests.broker.meta.support import DIRECTORY, MetadataDir
from tests.broker.meta.test_json_import import exported
from tests.support.memory_files import MemoryFiles

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
    meta.offsets.append_changed(meta.offsets.take_changed())
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
