"""Converts the tables to the bytes of RocketMQ's metadata files, in the form of 5.x, which 4.9 can read, too."""

from typing import Any

from broker.meta.consumer_offsets import ConsumerOffsets
from broker.meta.delay_offsets import DelayOffsets
from broker.meta.groups import Groups
from broker.meta.json_files import CONSUMER_OFFSETS, DELAY_OFFSETS, GROUPS, REQUEST_MODES, TOPICS
from broker.meta.request_modes import RequestModes
from broker.meta.topics import Topics
from mqcommon.fastjson import pretty
from remoting.protocol.bodies.assignment import MessageRequestModes


def json_files(
    topics: Topics,
    groups: Groups,
    consumer_offsets: ConsumerOffsets,
    delay_offsets: DelayOffsets,
    request_modes: RequestModes,
) -> dict[str, bytes]:
    """Each file's name and content."""
    topics_of: dict[str, dict[str, None]] = {}
    for key in consumer_offsets.table():
        topic, _, group = key.partition("@")
        topics_of.setdefault(group, {})[topic] = None
    tables: dict[str, dict[str, Any]] = {
        TOPICS: {
            "dataVersion": topics.data_version.to_wire(),
            "topicConfigTable": {config.topic_name: config.to_wire() for config in topics.persistent()},
        },
        GROUPS: {
            "dataVersion": groups.data_version.to_wire(),
            "forbiddenTable": groups.forbidden,
            "subscriptionGroupTable": {config.group_name: config.to_wire() for config in groups.persistent()},
        },
        CONSUMER_OFFSETS: {
            "dataVersion": consumer_offsets.data_version.to_wire(),
            "groupTopicMap": {group: names.keys() for group, names in topics_of.items()},
            "offsetTable": consumer_offsets.table(),
        },
        DELAY_OFFSETS: delay_offsets.table.to_wire(),
    }
    if request_modes.all():  # as a Java broker, which makes the file with the first mode
        tables[REQUEST_MODES] = MessageRequestModes(request_modes.by_topic()).to_wire()
    return {name: pretty(table).encode() for name, table in tables.items()}
