"""The doctor's findings, and findings of the console only: brokers that no NameServer lists. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from skylark.mqconsole.showing.texts import moment
from skylark.mqconsole.watching.roll import AwayBroker
from skylark.sdk.admin.reports.findings import DoctorFinding

FAIL, WARN, INFO, OK = "FAIL", "WARN", "INFO", "OK"
STATES: Final = (FAIL, WARN, INFO, OK)
#: The doctor's check of brokers that NameServers know to be away.
_ABSENT: Final = "absent"


def with_away(findings: Sequence[DoctorFinding], away: Iterable[AwayBroker]) -> list[DoctorFinding]:
    """The doctor's ``findings``, and a finding for each broker that no NameServer lists."""
    unlisted = [one for one in away if not one.is_listed]
    names = {one.broker_name for one in unlisted}
    own = [
        DoctorFinding(
            FAIL if one.is_master else WARN,
            "away",
            one.broker_name,
            f"{one.title} is away since {'' if one.is_since_known else 'before '}{moment(one.since_ms)}: {one.reason}",
            f"start it; if it is gone for good: mqadmin forgetBroker -b {one.broker_name}"
            if one.is_reported
            else "start it; if it is gone for good, say so on its page",
        )
        for one in unlisted
    ]
    return [*own, *(row for row in findings if row.check != _ABSENT or row.where not in names)]


def counts(findings: Iterable[DoctorFinding]) -> dict[str, int]:
    """How many findings are in each state."""
    states = [row.state for row in findings]
    return {state: states.count(state) for state in STATES}
