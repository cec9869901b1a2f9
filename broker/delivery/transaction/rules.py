"""What is due for a half that is open: see `due`. Pure.

A half is as old as its store time says. Copies, which each check makes, begin anew.
"""

from enum import Enum
from typing import NamedTuple

from broker.delivery.transaction.halves import checks_of, immunity_ms
from mqcommon.message.record import Record


class Due(Enum):
    """What is due for a half."""

    #: Nothing yet, nor for halves after it.
    NEW = "new"
    #: Nothing yet: its producer has said so.
    IMMUNE = "immune"
    CHECK = "check"
    GIVE_UP = "give up"


class Rules(NamedTuple):
    """The options."""

    timeout_ms: int
    max_checks: int


def due(half: Record, now_ms: int, rules: Rules) -> Due:
    """What is due for ``half`` now."""
    age_ms = now_ms - half.store_timestamp
    immune_ms = immunity_ms(half.properties, rules.timeout_ms)
    if age_ms < (rules.timeout_ms if immune_ms is None else immune_ms):
        return Due.NEW if immune_ms is None else Due.IMMUNE
    return Due.GIVE_UP if checks_of(half.properties) >= rules.max_checks else Due.CHECK
