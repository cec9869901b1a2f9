"""Offsets that a broker keeps: of consumers (43, 308), and of the delay levels (45). RocketMQ's files look the same."""

from dataclasses import dataclass

from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.kinds import LONG, TEXT, body_of, list_of, map_by_int, map_of


@dataclass(slots=True)
class ConsumerOffsetTable(Body):
    """Committed offsets by ``topic@group`` and queue; 5.x also sends the topics of each group."""

    offset_table: dict[str, dict[int, int]] = member(map_of(map_by_int(LONG)))
    group_topic_map: dict[str, list[str]] = member(map_of(list_of(TEXT)))
    data_version: DataVersion = member(body_of(DataVersion))


@dataclass(slots=True)
class DelayOffsetTable(Body):
    """How far the messages of each delay level were delivered."""

    offset_table: dict[int, int] = member(map_by_int(LONG))
    data_version: DataVersion = member(body_of(DataVersion))


@dataclass(slots=True)
class CorrectionOffsets(Body):
    """The lowest offset of all groups in each queue of a topic (308)."""

    correction_offsets: dict[int, int] = member(map_by_int(LONG))
