"""The command that has running brokers check their stores. Stopped brokers: ``broker verifyStore``."""

from collections.abc import Awaitable, Iterator
from dataclasses import field
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import option, where
from skylark.mqadmin.render import seconds_text
from skylark.mqadmin.scope import Scope, chosen_addrs
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import BrokerError, RemotingError, SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.scrubs import ScrubStatus

POLL_S = 0.2
# How long a broker may not answer before the command gives up; the scrub may go on.
AWAY_S = 30.0
MIB = 1024 * 1024


@lazy_dataclass(frozen=True, slots=True)
class StoreScrub:
    """The scrub of one broker's store that runs, or ran last. ``suspects``: damaged blocks that are not repaired.

    ``checked_bytes`` of ``total_bytes`` of the log are checked. ``problems``: what was found, of which ``mended_count``
    are repaired. ``last_ended_ms``: when all of the store was checked last; 0: never.
    """

    broker_addr: str
    enabled: bool
    running: bool
    held_up: bool
    percent: int
    checked_bytes: int
    total_bytes: int
    bytes_per_second: int
    problem_count: int
    mended_count: int
    suspects: int
    last_ended_ms: int
    problems: list[str] = field(default_factory=list)


def _lines(found: list[StoreScrub]) -> Iterator[str]:
    for one in found:
        for problem in one.problems:
            yield f"{one.broker_addr}: {problem}"
        if (more := one.problem_count - len(one.problems)) > 0:
            yield f"{one.broker_addr}: {more:,} more problems: see the log of the broker"
        yield f"{one.broker_addr}: {_text(one)}"


def _text(one: StoreScrub) -> str:
    if one.running:
        text = (
            f"{one.percent} % of {one.total_bytes >> 20:,} MiB of log checked, {one.bytes_per_second / MIB:,.2f} MiB/s"
            + (", waits for readers or fsyncs" if one.held_up else "")
        )
    else:
        text = "no scrub is running" + ("" if one.enabled else ", and scrubEnable is false")
        if one.total_bytes:
            text += f", the last one read {one.total_bytes >> 20:,} MiB of log"
    last = f"last whole scrub {seconds_text(one.last_ended_ms)}" if one.last_ended_ms else "never checked as a whole"
    damage = f"problems: {one.problem_count:,}, repaired: {one.mended_count:,}" if one.problem_count else "no damage"
    suspects = f", damaged blocks of the log now: {one.suspects:,}" if one.suspects else ""
    return f"{text}; {last}; {damage}{suspects}"


@command(
    "scrub",
    *where("scrub"),
    option("", "now", "check the whole store now, and wait for the end", is_flag=True),
    option("", "status", "show how far the scrub is, and what it has found; as without an option", is_flag=True),
    option(
        "", "rate", "with --now: MiB of log a second (64)", type=click.IntRange(1, 100_000), metavar="MIB", default=None
    ),
    show=_lines,
)
async def scrub(session: Session, scope: Scope, now: bool, status: bool, rate: int | None) -> list[StoreScrub]:
    """Check the store of a running broker for damage, or show how far that is.

    A broker reads its whole store in scrubCycleDays (14), past the memory, and repairs damaged bytes from the other
    brokers of its set. --now does it at once, at a bounded rate, while the broker serves: log, queues and index. -c
    asks all brokers of a cluster, slaves too. When the command is interrupted, the broker goes on. Exit code 1: there
    is damage that could not be repaired. For a stopped broker: broker verifyStore.
    """
    if now and status:
        raise UserError("give --now or --status, not both")
    if rate is not None and not now:
        raise UserError("--rate is the rate of a scrub that begins now: give --now, too")
    addrs = await chosen_addrs(session, scope, slaves=True)
    begun: dict[str, int] = {}
    for addr in addrs if now else ():
        try:
            begun[addr] = (await _asked(addr, session.admin.begin_scrub(addr, (rate or 0) * MIB))).asked_ms
        except SkylarkError as error:
            session.fail(error, f"scrub {addr}")
    found: list[StoreScrub] = []
    for addr in begun if now else addrs:
        try:
            if now:
                one = await _until_done(session, addr, begun[addr])
            else:
                one = await _asked(addr, session.admin.scrub_status(addr))
        except SkylarkError as error:
            session.fail(error, f"scrub {addr}")
            continue
        session.clear_progress()
        found.append(_report(addr, one))
        if one.suspects or one.problem_count > one.mended_count:
            session.failed = True
    return found


async def _asked(addr: str, question: Awaitable["ScrubStatus"]) -> "ScrubStatus":
    try:
        return await question
    except BrokerError as error:
        if not error.is_unknown_request:
            raise
        raise UserError(
            f"{addr} is not a broker of Skylark, or an old one, and does not scrub: stop it, and run broker verifyStore"
        ) from None


async def _until_done(session: Session, addr: str, asked_ms: int) -> "ScrubStatus":
    """The status after the scrub that was asked for at ``asked_ms``."""
    import trio

    give_up_at = trio.current_time() + AWAY_S
    while True:
        try:
            status = await session.admin.scrub_status(addr)
        except RemotingError:
            if trio.current_time() >= give_up_at:
                raise
        else:
            give_up_at = trio.current_time() + AWAY_S
            if status.asked_ms != asked_ms:
                raise UserError(f"{addr} knows nothing of this scrub: it was started anew meanwhile; try again")
            if not status.running:
                return status
            session.progress(f"{addr}: {_text(_report(addr, status))}")
        await trio.sleep(POLL_S)


def _report(addr: str, status: "ScrubStatus") -> StoreScrub:
    return StoreScrub(
        addr,
        status.enabled,
        status.running,
        status.held_up,
        status.percent,
        status.checked_bytes,
        status.total_bytes,
        status.bytes_per_second,
        status.problem_count,
        status.mended_count,
        status.suspects,
        status.last_ended_ms,
        status.problems,
    )


FAMILIES = {"Stores": (scrub,)}
