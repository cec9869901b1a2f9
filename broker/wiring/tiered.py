"""What a broker has of tiered storage; without tierPath nothing."""

import math
from collections.abc import Callable

from skylark.broker.admin.tier import TierRequests
from skylark.broker.metrics.tier import TierFigures, tier_rows
from skylark.broker.part import Part
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

#: The file of ``tierDiskCacheBytes`` in the store. A process that is killed leaves it there.
CACHE_FILE = "tiercache"


@lazy_dataclass(frozen=True)
class Tiered:
    """``parts`` run; ``answering`` have handlers of requests; ``figures`` are measured. The others: for the cleaner."""

    parts: tuple[Part, ...] = ()
    answering: tuple[Part, ...] = (TierRequests(None),)
    uploaded_to: Callable[[], float] = lambda: math.inf
    why_kept: Callable[[], str] = str
    figures: TierFigures | None = None

    def rows(self) -> dict[str, str]:
        """The rows of brokerStatus (28)."""
        return tier_rows(self.figures.status()) if self.figures else {}
