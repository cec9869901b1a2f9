"""Converts the tables to the bytes of RocketMQ's metadata files, in the form of 5.x, which 4.9 can read, too."""

from collections.abc import Mapping
from typing import Any

from broker.meta.consumer_offsets import ConsumerOffsets
from broker.meta.delay_offsets import DelayOffsets
from broker.meta.groups import Groups
from broker.meta.json_files import CONSUMER_OFFSETS, DELAY_OFFSETS, GROUPS, REQUEST_MODES, TOPICS
from broker.meta.json_import import POPS_KEY, is_of_revive_log
from broker.meta.request_modes import RequestModes
from broker.meta.topics import Topics
from mqcommon.fastjson import pretty
from remoting.protocol.requests.groups import MessageRequestModes

Offsets = Mapping[str, Mapping[int, int]]


def json_files(
    topics: Topics,
    groups: Groups,
    consumer_offsets: ConsumerOffsets,
    delay_offsets: DelayOffsets,
    request_modes: RequestModes,
    instead: Offsets | None = None,
) -> dict[str, bytes]:
    """Each file's name and content; ``instead``: offsets that a Java broker needs instead of those in the table."""
    offsets = _offsets(consumer_offsets.table(), instead or {})
    topics_of: dict[str, dict[str, None]] = {}
    for key in offsets:
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
            "offsetTable": offsets,
        },
        DELAY_OFFSETS: delay_offsets.table.to_wire(),
    }
    if request_modes.all():  # as a Java broker, which makes the file with the first mode
        tables[REQUEST_MODES] = MessageRequestModes(request_modes.by_topic()).to_wire()
    return {name: pretty(table).encode() for name, table in tables.items()}


def _offsets(table: Offsets, instead: Offsets) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for key, queues in table.items():
        if is_of_revive_log(key):
            found[key] = {queue_id: offset - 1 for queue_id, offset in queues.items() if offset}
        elif key != POPS_KEY or any(queues.values()):
            found[key] = dict(queues)
    for key, queues in instead.items():
        found[key] = {**found.get(key, {}), **queues}
    return found
