"""When a log file is rotated. Pure."""

from dataclasses import dataclass

HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rules: by size and by age; 0 switches a rule off. ``keep`` rotated files are kept."""

    max_bytes: int = 0
    max_age_hours: int = 0
    keep: int = 10

    def period(self, local_s: float) -> int:
        """The number of the period that a moment is in; ``local_s`` counts from a midnight of local time."""
        return int(local_s // (self.max_age_hours * HOUR_S)) if self.max_age_hours else 0

    def is_due(self, size: int, incoming: int, began_local_s: float, now_local_s: float) -> bool:
        """Whether to rotate a file of ``size`` before ``incoming`` bytes are added. An empty file is never rotated."""
        if not size:
            return False
        is_full = bool(self.max_bytes) and size + incoming > self.max_bytes
        return is_full or self.period(now_local_s) > self.period(began_local_s)

    def renames(self, path: str) -> list[tuple[str, str]]:
        """What becomes of the files, in this order; the last one of ``keep`` is replaced."""
        names = [path, *(f"{path}.{number}" for number in range(1, self.keep + 1))]
        return list(zip(names[-2::-1], names[:0:-1], strict=True))
