"""One examination of a cluster: for `mqadmin doctor`, and for the console's page."""

from collections import Counter
from functools import partial

from skylark.mqadmin.doctor.certificates import certificate_of
from skylark.mqadmin.doctor.checks import run_checks
from skylark.mqadmin.doctor.gather import Servers, gather, probe_port
from skylark.sdk.admin.reports.findings import DoctorFinding, DoctorReport

_STATES = ("OK", "INFO", "WARN", "FAIL")


async def examine(servers: Servers, timeout_ms: int, *, max_lag: int, quiet: bool = False) -> DoctorReport:
    """The findings of all checks, and how many have each state; ``quiet``: list only WARN and FAIL."""
    facts = await gather(
        servers, partial(probe_port, timeout_ms=timeout_ms), partial(certificate_of, timeout_ms=timeout_ms), max_lag
    )
    rows = [DoctorFinding(one.state, check, one.where, one.text, one.remedy) for check, one in run_checks(facts)]
    counts = Counter(row.state for row in rows)
    shown = tuple(row for row in rows if not quiet or row.state in ("WARN", "FAIL"))
    return DoctorReport(shown, {state: counts[state] for state in _STATES})
