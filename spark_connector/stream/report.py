"""What the progress of a query says of a stream besides its offsets, in the source's ``latestOffset``. Pure.

Sources in Python cannot fill the ``metrics`` of the progress, but what they report as the latest offset is shown there
as it is. Checkpoints have nothing of this. Neighbours: driver.py (finds it), spark_connector/lag.py (reads it).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The key of the report beside the offsets.
REPORT = "report"


@dataclass(frozen=True)
class StreamReport:
    """``oldest_ms`` and ``mean_bytes`` are of messages that wait, by topic, for topics that were looked at."""

    #: When the oldest message was stored, by the clock of its broker.
    oldest_ms: Mapping[str, int] = field(default_factory=dict)
    #: The mean size of messages, as brokers store them.
    mean_bytes: Mapping[str, float] = field(default_factory=dict)
    #: Messages that were deleted before this run of the query could read them.
    skipped_rows: int = 0
    #: What was away in the last trigger, such as "broker a".
    away: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Without what is empty."""
        found = {
            "oldestMs": dict(self.oldest_ms),
            "meanBytes": dict(self.mean_bytes),
            "skippedRows": self.skipped_rows,
            "away": list(self.away),
        }
        return {key: value for key, value in found.items() if value}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "StreamReport":
        """What `to_dict` has made."""
        return cls(
            found.get("oldestMs", {}),
            found.get("meanBytes", {}),
            found.get("skippedRows", 0),
            tuple(found.get("away", ())),
        )
