"""``broker resyncSlave``: lets a slave whose log differs from its master's begin again. Nothing is deleted.

Log, queues and index are moved to a directory of their own inside the store. Metadata stays; the master's will replace
it. If the command is interrupted, the store still starts, and the command can be repeated.
Neighbours: replication/slave.py (says when this is needed), cli.py.
"""

from datetime import datetime

import click

from broker.commands.offline import absolute, errors_on_one_line
from broker.store.abort import ABORT
from broker.store.inventory import FILE_NAME as INVENTORY
from broker.store.queue.ends import FILE_NAME as QUEUE_ENDS
from broker.store.queue.ends import SINCE_NAME
from broker.store.truncation.intent import FILE_NAME as INTENT
from mqcommon.clock import Clock, SystemClock
from mqcommon.disk.files import FileSystem, OsFiles
from mqcommon.errors import StoreLocked, UserError

# The log goes near the end: a store that has only its log starts, and rebuilds the rest.
PARTS = (
    "index", "consumequeue", "batchconsumequeue", QUEUE_ENDS, SINCE_NAME, "checkpoint", INTENT, INVENTORY, "commitlog",
    ABORT,
)  # fmt: skip


@click.command("resyncSlave")
@click.argument("store_dir")
def resync_slave(store_dir: str) -> None:
    """Have a slave copy all of its master's messages again. Its own messages are moved aside, not deleted.

    STORE_DIR is the slave's storePathRootDir; the slave must be stopped.
    """
    with errors_on_one_line(store_dir):
        aside = resync(OsFiles(), SystemClock(), absolute(store_dir))
        click.echo(f"messages moved to {aside}: delete that directory if you do not need them")
        click.echo("when it starts again as a slave, it copies all messages of the master")


def resync(fs: FileSystem, clock: Clock, root: str) -> str:
    """Move all files with messages aside; returns the directory that they are in now."""
    if not fs.is_dir(f"{root}/commitlog"):
        raise UserError(f"{root} holds no commit log: give the directory that storePathRootDir names")
    try:
        lock = fs.lock(f"{root}/lock")
    except StoreLocked:
        raise UserError(f"{root} is open in a broker: stop it first") from None
    try:
        aside = f"{root}/diverged-{datetime.fromtimestamp(clock.now_ms() / 1000):%Y%m%d-%H%M%S}"
        if fs.exists(aside):
            raise UserError(f"{aside} exists already: repeat the command in a second")
        fs.mkdirs(aside)
        for part in PARTS:
            if fs.exists(f"{root}/{part}"):
                fs.rename(f"{root}/{part}", f"{aside}/{part}")
                fs.fsync_dir(aside)
                fs.fsync_dir(root)
    finally:
        lock.close()
    return aside
