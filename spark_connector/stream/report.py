"""What the progress of a query shows of a stream besides its offsets, in the source's ``latestOffset``. Pure.

Sources in Python cannot fill the ``metrics`` of the progress, but the latest offset that they report is shown there
unchanged. Checkpoints do not have the report.
Neighbours: driver.py (finds it), spark_connector/lag.py (reads it).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The key of the report beside the offsets.
REPORT = "report"


@dataclass(frozen=True)
class StreamReport:
    """One report.

    ``oldest_ms`` and ``mean_bytes`` are of messages that wait, by topic, for topics that were sampled.
    """

    #: When the oldest message was stored, by the clock of its broker.
    oldest_ms: Mapping[str, int] = field(default_factory=dict)
    #: The mean size of messages, as brokers store them.
    mean_bytes: Mapping[str, float] = field(default_factory=dict)
    #: Messages that were deleted before this run of the query could read them.
    skipped_rows: int = 0
    #: The servers that were away in the last trigger, such as "broker a".
    away: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report as a dict, without empty values."""
        found = {
            "oldestMs": dict(self.oldest_ms),
            "meanBytes": dict(self.mean_bytes),
            "skippedRows": self.skipped_rows,
            "away": list(self.away),
        }
        return {key: value for key, value in found.items() if value}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "StreamReport":
        """The report from the dict of `to_dict`."""
        return cls(
            found.get("oldestMs", {}),
            found.get("meanBytes", {}),
            found.get("skippedRows", 0),
            tuple(found.get("away", ())),
        )
