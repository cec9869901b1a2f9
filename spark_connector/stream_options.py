"""The options of ``spark.readStream.format("rocketmq")``: those of a batch, and what only a stream has.

A stream has no end, and starts at ``latest`` unless told otherwise, as Kafka's source does.
Neighbours: options.py (what both have), admission.py (what the limits mean), docs/spark.md (its table is made from
here).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mqcommon.errors import UserError
from mqcommon.option_fields import option, options_of
from spark_connector.options import ReadOptions

_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,15})\s*([a-z]*)", re.ASCII)


@dataclass(frozen=True)
class OnlyStreams:
    """What only a stream has, and what has another default there."""

    starting_offsets: str = option(
        "latest",
        "where a new query starts: `earliest`, `latest`, `committed` (of consumerGroup) or JSON, queue by queue",
    )
    broker_wait_ms: int = option(
        600_000, "how long a task waits for a broker that is away, before it fails", unit="ms", minimum=0
    )
    max_offsets_per_trigger: int = option(0, "most messages of a micro-batch (0: no limit)", minimum=0)
    min_offsets_per_trigger: int = option(
        0, "messages that a micro-batch waits for, up to maxTriggerDelay (0: none)", minimum=0
    )
    max_trigger_delay: str = option("15m", "how long a micro-batch waits for minOffsetsPerTrigger: `90s`, `15m`, `1h`")
    max_bytes_per_trigger: int = option(
        0, "most bytes of a micro-batch, as brokers store them, by the mean size of messages (0: no limit)", minimum=0
    )
    commit_offsets: bool = option(
        False, "commit the offsets of finished micro-batches for consumerGroup; they are never set back"
    )
    discovery_interval_ms: int = option(
        10_000, "how often to look for new topics, queues and brokers (0: in each trigger)", unit="ms", minimum=0
    )


@dataclass(frozen=True)
class StreamOptions(OnlyStreams, ReadOptions):
    """Options of ``spark.readStream.format("rocketmq")``."""

    @property
    def max_trigger_delay_ms(self) -> int:
        return _duration_ms(self.max_trigger_delay)

    @property
    def has_limits(self) -> bool:
        """Whether a micro-batch may have less than all that is there."""
        return bool(self.max_offsets_per_trigger or self.min_offsets_per_trigger or self.max_bytes_per_trigger)

    def check(self) -> None:
        """Raise UserError for combinations of options that are invalid."""
        super().check()
        _ = self.max_trigger_delay_ms
        if 0 < self.max_offsets_per_trigger < self.min_offsets_per_trigger:
            raise UserError(
                f"option minOffsetsPerTrigger: {self.min_offsets_per_trigger} is more than maxOffsetsPerTrigger,"
                f" {self.max_offsets_per_trigger}"
            )
        if self.commit_offsets:
            self.check_group("commitOffsets=true")
        ends = {"endingTimestamp": self.ending_timestamp >= 0, "endingOffsetsByTimestamp": self.end_times}
        ends |= {"endingOffsets": self.wanted_end != _DEFAULTS.wanted_end}
        for name in (name for name, is_set in ends.items() if is_set):
            raise UserError(f"option {name}: a stream has no end; use spark.read, or .trigger(availableNow=True)")
        if self.pushdown:
            raise UserError("option pushdown: streams have none; choose topics, queues and tags with options")


_DEFAULTS = ReadOptions()
_ONLY_STREAMS = {o.key.lower() for o in options_of(OnlyStreams)} - {o.key.lower() for o in options_of(ReadOptions)}


def only_of_streams(given: Iterable[str]) -> list[str]:
    """The names of options that only a stream has."""
    return [name for name in given if name.lower() in _ONLY_STREAMS]


def _duration_ms(text: str) -> int:
    found = _DURATION.fullmatch(text.strip().lower())
    unit = _UNITS_MS.get(found[2]) if found else None
    if found is None or unit is None:
        raise UserError(f"option maxTriggerDelay: {text!r} is no duration; give a number with ms, s, m, h or d")
    return int(found[1]) * unit
