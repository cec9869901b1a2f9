"""The state of pop consumption, which its parts share."""

from skylark.broker.delivery.pop.copies import RevivedCopies
from skylark.broker.delivery.pop.held_pops import HeldPops
from skylark.broker.delivery.pop.log import ReviveLog
from skylark.broker.delivery.pop.positions import Positions
from skylark.mqcommon.lazy_dataclass import lazy_dataclass


@lazy_dataclass(frozen=True, slots=True)
class PopState:
    """The revive log, the positions of groups, the waiting requests, and the copies of messages that come back."""

    log: ReviveLog
    positions: Positions
    held: HeldPops
    copies: RevivedCopies
