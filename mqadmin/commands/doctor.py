"""The command that checks a whole cluster, and says what is wrong and what to do."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import option
from skylark.mqadmin.render import Table
from skylark.mqadmin.session import Session
from skylark.mqcommon.visible import visible

if TYPE_CHECKING:
    from skylark.mqadmin.doctor.gather import Servers
    from skylark.sdk.admin.reports.findings import DoctorReport

_TABLE = Table(
    (("#State", "state"), ("#Check", "check"), ("#Where", "where"), ("#What", "text")), "%-6s %-12s %-36s %s"
)
_COUNTED = ("OK", "INFO", "WARN", "FAIL")


def _lines(found: "DoctorReport") -> Iterator[str]:
    yield _TABLE.head()
    for row in found.findings:
        yield _TABLE.row(row, where=visible(row.where), text=visible(row.text))
        if row.remedy:
            yield f"{'':<7}{'':<13}-> {visible(row.remedy)}"
    yield ""
    yield ", ".join(f"{found.counts[state]} {state}" for state in _COUNTED)


@command(
    "doctor",
    option("q", "quiet", "show only what is wrong: WARN and FAIL", type=bool, is_flag=True),
    option(
        "",
        "maxLag",
        "warn about a group that has more messages of a topic to consume than this",
        type=click.IntRange(min=0),
        default=10_000,
        show_default=True,
    ),
    show=_lines,
)
async def doctor(session: Session, quiet: bool, max_lag: int) -> "DoctorReport":
    """Check NameServers, brokers, ports, clocks, disks, copies, groups and settings, and say what to do.

    The exit code is 1 if anything is FAIL. Nothing is changed.
    """
    found = await examine(session, session.settings.timeout_ms, max_lag=max_lag, quiet=quiet)
    session.failed = session.failed or found.counts["FAIL"] > 0
    return found


async def examine(servers: "Servers", timeout_ms: int, *, max_lag: int, quiet: bool = False) -> "DoctorReport":
    """The findings of all checks, and how many have each state; ``quiet``: list only WARN and FAIL."""
    from skylark.mqadmin.doctor.certificates import certificate_of
    from skylark.mqadmin.doctor.checks import run_checks
    from skylark.mqadmin.doctor.gather import gather, probe_port
    from skylark.sdk.admin.reports.findings import DoctorFinding, DoctorReport

    facts = await gather(
        servers, partial(probe_port, timeout_ms=timeout_ms), partial(certificate_of, timeout_ms=timeout_ms), max_lag
    )
    rows = [DoctorFinding(one.state, check, one.where, one.text, one.remedy) for check, one in run_checks(facts)]
    counts = Counter(row.state for row in rows)
    shown = tuple(row for row in rows if not quiet or row.state in ("WARN", "FAIL"))
    return DoctorReport(shown, {state: counts[state] for state in _COUNTED})


FAMILIES = {
    "Health": (doctor,),
}
