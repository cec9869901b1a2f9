"""What a broker has of tiered storage; without tierPath nothing."""

import math
from collections.abc import Callable

from skylark.broker.admin.tier import TierRequests
from skylark.broker.part import Part
from skylark.mqcommon.lazy_dataclass import lazy_dataclass


@lazy_dataclass(frozen=True)
class Tiered:
    """``parts`` run; ``answering`` have handlers of requests. The others are for the cleaner."""

    parts: tuple[Part, ...] = ()
    answering: tuple[Part, ...] = (TierRequests(None),)
    uploaded_to: Callable[[], float] = lambda: math.inf
    why_kept: Callable[[], str] = str
