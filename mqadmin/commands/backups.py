"""The command that backs up the stores of running brokers. The way back is ``broker restore``."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from skylark.mqadmin.command import command
from skylark.mqadmin.params import where
from skylark.mqadmin.scope import Scope, chosen_addrs
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import BrokerError, SkylarkError, UserError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass

if TYPE_CHECKING:
    from skylark.remoting.protocol.requests.backups import BackupStatus

POLL_S = 0.1
# How long a broker may not answer before the command gives up; the backup may go on.
AWAY_S = 30.0


@lazy_dataclass(frozen=True, slots=True)
class StoreBackedUp:
    """A backup that is done. ``directory`` is on the broker's machine; sizes are in bytes."""

    broker_addr: str
    directory: str
    files: int
    log_start: int
    log_end: int
    linked: int
    copied: int
    took_ms: int


def _lines(made: list[StoreBackedUp]) -> Iterator[str]:
    for one in made:
        yield (
            f"{one.broker_addr}: {one.directory}: log from {one.log_start:,} to {one.log_end:,},"
            f" {one.files:,} files, {one.linked >> 20:,} MiB linked, {one.copied >> 20:,} MiB copied,"
            f" {one.took_ms / 1000:.1f} s"
        )
    if made:
        yield "copy it to another machine, then remove it: linked files keep their space on the disk."


@command(
    "backup",
    click.Argument(["name"], metavar="DIR"),
    *where("back up"),
    show=_lines,
)
async def backup(session: Session, scope: Scope, name: str) -> list[StoreBackedUp]:
    """Back up the store of a running broker to the directory backup/DIR in its storePathRootDir.

    The backup has all messages, topics, groups, offsets, users and policies of one moment; sends go on meanwhile. Whole
    files are hard links, so a backup is quick and takes little space at first. -c backs up each master of a cluster, at
    about the same time. When the command is interrupted, the broker goes on. The way back: broker restore.
    """
    addrs = await chosen_addrs(session, scope)
    begun: list[str] = []
    for addr in addrs:
        try:
            await _begin(session, addr, name)
        except SkylarkError as error:
            session.fail(error, f"back up {addr}")
        else:
            begun.append(addr)
    made: list[StoreBackedUp] = []
    for addr in begun:
        try:
            status = await _until_done(session, addr, name)
        except SkylarkError as error:
            session.fail(error, f"back up {addr}")
            continue
        made.append(
            StoreBackedUp(
                addr,
                status.directory,
                status.files,
                status.log_start,
                status.log_end,
                status.linked,
                status.to_copy,
                status.took_ms,
            )
        )
    return made


async def _begin(session: Session, addr: str, name: str) -> None:
    try:
        await session.admin.begin_backup(addr, name)
    except BrokerError as error:
        if not error.is_unknown_request:
            raise
        raise UserError(
            f"{addr} is not a broker of Skylark, or an old one, and makes no backups: stop it, and copy its"
            " storePathRootDir"
        ) from None


async def _until_done(session: Session, addr: str, name: str) -> "BackupStatus":
    """The last status of a backup that is done; UserError when it failed."""
    import trio

    from skylark.mqcommon.errors import RemotingError
    from skylark.remoting.protocol.requests.backups import DONE, RUNNING

    give_up_at = trio.current_time() + AWAY_S
    while True:
        try:
            status = await session.admin.backup_status(addr)
        except RemotingError:
            if trio.current_time() >= give_up_at:
                raise
        else:
            give_up_at = trio.current_time() + AWAY_S
            if status.name != name:
                raise UserError(f"{addr} knows nothing of the backup {name}: it was started anew meanwhile; try again")
            if status.state == DONE:
                return status
            if status.state != RUNNING:
                raise UserError(status.error)
            session.progress(f"{addr}: copied {status.copied >> 20:,} of {status.to_copy >> 20:,} MiB")
        await trio.sleep(POLL_S)


FAMILIES = {"Stores": (backup,)}
