"""Options that only streams have: limits of micro-batches, discovery, commits.

Names and meanings are those of Kafka's source where it has them.
Neighbours: read.py (these are part of `ReadOptions`), stream/admission.py (what the limits mean).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mqcommon.errors import UserError
from mqcommon.options.fields import option, options_of

_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,15})\s*([a-z]*)", re.ASCII)


@dataclass(frozen=True)
class StreamOptions:
    """What only streams have; the fields of `ReadOptions` for that."""

    max_offsets_per_trigger: int = option(0, "streams: most messages of a micro-batch (0: no limit)", minimum=0)
    min_offsets_per_trigger: int = option(
        0, "streams: messages that a micro-batch waits for, up to maxTriggerDelay (0: none)", minimum=0
    )
    max_trigger_delay: str = option(
        "15m", "streams: how long a micro-batch waits for minOffsetsPerTrigger: `90s`, `15m`, `1h`"
    )
    max_bytes_per_trigger: int = option(
        0,
        "streams: most bytes of a micro-batch, as brokers store them, by the mean size of messages (0: no limit)",
        minimum=0,
    )
    commit_offsets: bool = option(
        False, "streams: commit the offsets of finished micro-batches for consumerGroup; they are never set back"
    )
    discovery_interval_ms: int = option(
        10_000,
        "streams: how often to look for new topics, queues and brokers (0: in each trigger)",
        unit="ms",
        minimum=0,
    )

    @property
    def max_trigger_delay_ms(self) -> int:
        """The longest wait for enough messages."""
        found = _DURATION.fullmatch(self.max_trigger_delay.strip().lower())
        unit_ms = _UNITS_MS.get(found[2]) if found else None
        if found is None or unit_ms is None:
            raise UserError(
                f"option maxTriggerDelay: {self.max_trigger_delay!r} is no duration; give a number with ms, s, m, h"
                " or d"
            )
        return int(found[1]) * unit_ms

    @property
    def has_limits(self) -> bool:
        """Whether a micro-batch may have less than all that is there."""
        return bool(self.max_offsets_per_trigger or self.min_offsets_per_trigger or self.max_bytes_per_trigger)

    def check_limits(self) -> None:
        """Raise UserError for limits that are invalid."""
        _ = self.max_trigger_delay_ms
        if 0 < self.max_offsets_per_trigger < self.min_offsets_per_trigger:
            raise UserError(
                f"option minOffsetsPerTrigger: {self.min_offsets_per_trigger} is more than maxOffsetsPerTrigger,"
                f" {self.max_offsets_per_trigger}"
            )


_NAMES = {o.key.lower() for o in options_of(StreamOptions)}


def only_of_streams(given: Iterable[str]) -> list[str]:
    """The names of options that only streams have."""
    return [name for name in given if name.lower() in _NAMES]
