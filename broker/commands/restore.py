"""``broker restore``: makes a store of a backup, and checks it.

Neighbours: store/backup/ (the steps), verify_store.py (the check), admin/backup.py (makes backups).
"""

import sys
from datetime import datetime

import click

from skylark.broker.commands.offline import ProgressLines, absolute, errors_on_one_line
from skylark.broker.commands.verify_store import verify
from skylark.broker.meta.metadata import Metadata
from skylark.broker.options import BrokerOptions
from skylark.broker.store.backup.manifest import Manifest, read_manifest
from skylark.broker.store.backup.restoring import Restore, options_of
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.disk.files import FileSystem, OsFiles
from skylark.mqcommon.errors import StoreCorrupt

_HOUR_MS = 3_600_000
# fileReservedTime of a broker whose conf file does not set it.
_USUAL_HOURS = BrokerOptions().file_reserved_time


@click.command("restore")
@click.argument("backup_dir", metavar="BACKUP")
@click.argument("store_dir")
@click.option("--no-check", is_flag=True, help="do not read every message of the new store; the files are compared")
def restore(backup_dir: str, store_dir: str, no_check: bool) -> None:
    """Make a store of a backup, for a broker that is started with it afterwards.

    BACKUP is a directory that mqadmin backup has made, or a copy of it. STORE_DIR is the storePathRootDir of the broker
    that is to have the messages: a new or empty directory. The backup is not changed. All files are compared with what
    the backup says of them, and then all messages are read, as by verifyStore. Exit code 1: there is damage, or the
    backup could not be restored. An interrupted restore is done again by the same command.
    """
    with errors_on_one_line(store_dir):
        sound = restore_to(OsFiles(), absolute(backup_dir), absolute(store_dir), checks=not no_check)
    sys.exit(0 if sound else 1)


def restore_to(fs: FileSystem, backup: str, directory: str, *, checks: bool = True) -> bool:
    """Restore the backup in ``backup`` to ``directory``; returns whether the new store is sound."""
    manifest = read_manifest(fs, backup)
    click.echo(_what(manifest))
    work, progress = Restore(fs, backup, directory, manifest), ProgressLines()
    work.prepare()
    work.copy(progress.of("copied"))
    click.echo(f"copied {manifest.written >> 20:,} MiB in {len(manifest.files):,} files to {directory}")
    store = work.recover(click.echo)
    try:
        if store.log.end != manifest.log_end:
            raise StoreCorrupt(
                directory, 0, f"the log ends at {store.log.end:,}, and in the backup it went to {manifest.log_end:,}"
            )
        lowered = lower_offsets(fs, directory, store)
        oldest_ms = store.earliest_store_time()
    finally:
        unclean = store.close()
    if unclean:
        click.echo(f"the store was not closed cleanly, so its first start takes longer: {unclean}")
    if lowered:
        click.echo(f"offsets of groups that were past the end of their queues, and are at the end now: {lowered:,}")
    sound = True
    if checks:
        options = options_of(manifest, directory)
        sound = verify(fs, options, repair=False, say=click.echo, progress=progress.of("read"))
    work.finish()
    if not sound:
        click.echo(
            "the new store is damaged, as the backup is: use an older backup, or keep every sound message:"
            f" broker verifyStore --repair {directory}"
        )
    for line in _next_steps(manifest, directory, oldest_ms, SystemClock().now_ms()):
        click.echo(line)
    return sound


def lower_offsets(fs: FileSystem, directory: str, store: MessageStore) -> int:
    """Let no group's offset be past the end of its queue in ``store``, or it would skip new messages. How many were.

    Only the backup of a slave can have such offsets: it copies offsets of its master that may be ahead of its log.
    """
    metadata = Metadata(fs, f"{directory}/config", SystemClock(), BrokerOptions())
    metadata.recover(must_exist=True)
    offsets, static = metadata.consumer_offsets, metadata.topics.static.all()
    past: list[tuple[str, str, int, int]] = []
    for key, queues in offsets.table().items():
        topic, _, group = key.partition("@")
        for queue_id, offset in queues.items():
            queue = store.queues.find(topic, queue_id)
            # Offsets of static topics count through all brokers of the queue.
            if queue is not None and topic not in static and offset > queue.next_offset:
                past.append((group, topic, queue_id, queue.next_offset))
    for group, topic, queue_id, end in past:
        offsets.commit_now(group, topic, queue_id, end)
    metadata.journal.close()
    return len(past)


def _what(manifest: Manifest) -> str:
    made, origin = datetime.fromtimestamp(manifest.made_ms / 1000).isoformat(" ", "seconds"), manifest.origin
    return (
        f"backup of {origin.broker_name} ({origin.kind}, cluster {origin.cluster_name}) of {made}:"
        f" log from {manifest.log_start:,} to {manifest.log_end:,}"
    )


def _next_steps(manifest: Manifest, directory: str, oldest_ms: int, now_ms: int) -> list[str]:
    """What to set for the start of a broker with the new store."""
    origin, sizes = manifest.origin, manifest.sizes
    lines = [
        f"restored. Start a broker with brokerName={origin.broker_name} storePathRootDir={directory}"
        f" mappedFileSizeCommitLog={sizes.commitlog_segment_bytes}"
    ]
    hours = -(-max(now_ms - oldest_ms, 0) // _HOUR_MS)
    if oldest_ms >= 0 and hours >= _USUAL_HOURS:
        lines.append(
            f"its oldest message is {hours:,} hours old: set fileReservedTime higher than that, or the broker deletes"
            " old messages at the next deleteWhen"
        )
    lines.append(
        "beside the broker that it was made of: give --namesrv-addr of another NameServer, or it takes the other's"
        " place in the cluster"
    )
    if origin.mode != "plain":
        lines.append(f"the broker was in {origin.mode} mode: see docs/operate/backup.md before the start")
    return lines
