"""What the other parts of a broker get from tiered storage. Without tierPath it imports nothing of broker/tier."""

import math
from collections.abc import Callable

from skylark.broker.admin.tier import TierRequests
from skylark.broker.metrics.tier import TierFigures, tier_rows
from skylark.broker.part import Part
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

#: The file of ``tierDiskCacheBytes`` in the store. A process that is killed leaves the file there.
CACHE_FILE = "tiercache"


@lazy_dataclass(frozen=True)
class Tiered:
    """Tiered storage of one broker; the defaults are for a broker without tierPath.

    ``parts`` run; ``answering`` have handlers of requests; ``uploaded_to`` and ``why_kept``: see `Cleaner`.
    """

    parts: tuple[Part, ...] = ()
    answering: tuple[Part, ...] = (TierRequests(None),)
    uploaded_to: Callable[[], float] = lambda: math.inf
    why_kept: Callable[[], str] = str
    figures: TierFigures | None = None

    def rows(self) -> dict[str, str]:
        """The rows of brokerStatus (28)."""
        return tier_rows(self.figures) if self.figures else {}
