"""``broker resyncSlave``: a slave whose log is not its master's any more begins anew, and nothing of the old is lost.

Log, queues and index go into a directory of their own beside where they were; metadata stays, the master's replaces
it. Whenever this is broken off, the store is one that starts, and the command can be given again.
Neighbours: replication/slave.py (tells when that is needed), cli.py.
"""

from datetime import datetime

import click

from broker.commands.offline import absolute, told_in_one_line
from broker.store.abort import ABORT
from broker.store.queue.ends import FILE_NAME as QUEUE_ENDS
from mqcommon.clock import Clock, SystemClock
from mqcommon.errors import StoreLocked, UserError
from mqcommon.files import FileSystem, OsFiles

# The log goes last: without the others a start makes them anew.
PARTS = ("index", "consumequeue", QUEUE_ENDS, "checkpoint", "commitlog", ABORT)


@click.command("resyncSlave")
@click.argument("store_dir")
def resync_slave(store_dir: str) -> None:
    """Have a slave copy its master's messages anew; what it has is moved aside, not deleted.

    STORE_DIR is what storePathRootDir says; its broker must be stopped.
    """
    with told_in_one_line(store_dir):
        aside = resync(OsFiles(), SystemClock(), absolute(store_dir))
        click.echo(f"messages moved to {aside}: delete it when nothing in it is needed")
        click.echo("the next start as a slave copies all that the master has")


def resync(fs: FileSystem, clock: Clock, root: str) -> str:
    """Move what holds messages aside; returns where to."""
    if not fs.is_dir(f"{root}/commitlog"):
        raise UserError(f"{root} holds no commit log: give the directory that storePathRootDir names")
    try:
        lock = fs.lock(f"{root}/lock")
    except StoreLocked:
        raise UserError(f"{root} is open in a broker: stop it first") from None
    try:
        aside = f"{root}/diverged-{datetime.fromtimestamp(clock.now_ms() / 1000):%Y%m%d-%H%M%S}"
        if fs.exists(aside):
            raise UserError(f"{aside} is there already: give the command again in a second")
        fs.mkdirs(aside)
        for part in PARTS:
            if fs.exists(f"{root}/{part}"):
                fs.rename(f"{root}/{part}", f"{aside}/{part}")
                fs.fsync_dir(aside)
                fs.fsync_dir(root)
    finally:
        lock.close()
    return aside
