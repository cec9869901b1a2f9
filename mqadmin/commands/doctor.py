"""The command that checks a whole cluster, and says what is wrong and what to do."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import option
from skylark.mqadmin.render import Table
from skylark.mqadmin.session import Session
from skylark.mqcommon.visible import visible

if TYPE_CHECKING:
    from skylark.sdk.admin.reports.findings import DoctorReport

_TABLE = Table(
    (
        ("#State", "state"),
        ("#Check", "check"),
        ("#Where", lambda row: visible(row.where)),
        ("#What", lambda row: visible(row.text)),
    ),
    "%-6s %-12s %-36s %s",
)


def _lines(found: "DoctorReport") -> Iterator[str]:
    yield _TABLE.head()
    for row in found.findings:
        yield _TABLE.row(row)
        if row.remedy:
            yield f"{'':<7}{'':<13}-> {visible(row.remedy)}"
    yield ""
    yield ", ".join(f"{count} {state}" for state, count in found.counts.items())


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
    from skylark.mqadmin.doctor.examine import examine

    found = await examine(session, session.settings.timeout_ms, max_lag=max_lag, quiet=quiet)
    session.failed = session.failed or found.counts["FAIL"] > 0
    return found


FAMILIES = {
    "Health": (doctor,),
}
