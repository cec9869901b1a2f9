"""``broker verifyStore``: finds damage in the store of a stopped broker, and repairs it.

Neighbours: store/check/verify.py, store/check/repair.py, cli.py.
"""

import sys
from collections.abc import Callable
from dataclasses import replace

import click

from skylark.broker.broker import store_options
from skylark.broker.commands.offline import ProgressLines, absolute, errors_on_one_line, locked
from skylark.broker.meta.journal import check_journal
from skylark.broker.options import BrokerOptions
from skylark.broker.store.check.repair import Repair
from skylark.broker.store.check.verify import Verification, VerifyReport
from skylark.broker.store.log.log_files import LogFiles
from skylark.broker.store.queue.entry import BATCH_ENTRY_BYTES, ENTRY_BYTES
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.mqcommon.clock import SystemClock
from skylark.mqcommon.disk.files import FileSystem, OsFiles
from skylark.mqcommon.disk.loading import LOST_ERRNOS
from skylark.mqcommon.errors import UserError
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.options.conf_file import load_conf


@click.command("verifyStore")
@click.argument("store_dir")
@click.option("-c", "--config-file", "conf", metavar="FILE", help="the broker's conf file; for the size of index files")
@click.option(
    "--repair", is_flag=True, help="repair the store so that it starts; cut bytes are saved beside their file"
)
def verify_store(store_dir: str, conf: str | None, repair: bool) -> None:
    """Read a whole store and report each damage: file, offset, reason.

    STORE_DIR is the broker's storePathRootDir; the broker must be stopped (a broker that serves: mqadmin scrub --now).
    After what the disk cannot read, the check goes on. Exit code 1: there is damage, or the disk cannot read all.
    """
    with errors_on_one_line(store_dir):
        options = load_conf(BrokerOptions, conf, {"store_path_root_dir": absolute(store_dir)})
        sound = verify(
            OsFiles(), store_options(options), repair=repair, say=click.echo, progress=ProgressLines().of("read")
        )
    sys.exit(0 if sound else 1)


def verify(
    fs: FileSystem,
    options: StoreOptions,
    *,
    repair: bool,
    say: Callable[[str], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> bool:
    """Check the store, report damage, and repair it if asked; returns whether the store is sound afterwards.

    ``say`` gets lines for the user, ``progress`` the bytes read so far and the bytes in all.
    """
    directory = options.directory
    if not fs.is_dir(f"{directory}/commitlog") and not fs.is_dir(f"{directory}/config"):
        raise UserError(f"{directory} holds no store: give the directory that storePathRootDir names")
    options = with_sizes_found(fs, options)
    serving = "" if repair else ", or have it check its store while it serves: mqadmin scrub --now -b HOST:PORT"
    with locked(fs, directory, serving):
        report = _verify_files(fs, options, progress)
        sound_metadata = _say_metadata(fs, directory, say)
        _say_report(report, say)
        sound = not report.damages and not report.lost and (report.torn_tail is None or not repair)
        if sound or not repair:
            return sound and sound_metadata
        Repair(fs, directory, report, say).run()
    # An ordinary start rebuilds the files that the repair removed; then everything is read once more.
    store = MessageStore(fs, options, SystemClock(), encode_host("127.0.0.1", 0))
    rebuilt = store.open(say).rebuilt
    store.close()
    if rebuilt:
        say(f"{len(rebuilt)} consume queues rebuilt")
    say("after the repair:")
    report = _verify_files(fs, options, progress)
    _say_report(report, say)
    return not report.damages and not report.lost and sound_metadata


def with_sizes_found(fs: FileSystem, options: StoreOptions) -> StoreOptions:
    """``options`` with the file sizes found on disk: the conf file may have other sizes, or not be given.

    A power loss may leave a queue file of any length.
    """
    log = LogFiles(fs, f"{options.directory}/commitlog")
    log.close()
    queues = _file_bytes(fs, f"{options.directory}/consumequeue", ENTRY_BYTES)
    batch_queues = _file_bytes(fs, f"{options.directory}/batchconsumequeue", BATCH_ENTRY_BYTES)
    return replace(
        options,
        commitlog_segment_bytes=log.file_bytes or options.commitlog_segment_bytes,
        consumequeue_segment_bytes=queues or options.consumequeue_segment_bytes,
        batchqueue_segment_bytes=batch_queues or options.batchqueue_segment_bytes,
    )


def _file_bytes(fs: FileSystem, root: str, entry_bytes: int) -> int:
    """The size of the queue files in ``root``; 0 if there are none."""
    sizes = [
        fs.size(f"{root}/{topic}/{queue}/{name}")
        for topic in fs.listdir(root)
        for queue in fs.listdir(f"{root}/{topic}")
        for name in fs.listdir(f"{root}/{topic}/{queue}")
    ]
    return max((size for size in sizes if size % entry_bytes == 0), default=0)


def _verify_files(fs: FileSystem, options: StoreOptions, progress: Callable[[int, int], None]) -> VerifyReport:
    slots, capacity = options.index_slots, options.index_capacity
    return Verification(fs, options.directory, slots, capacity, progress).run()


def _say_report(report: VerifyReport, say: Callable[[str], None]) -> None:
    for damage in (*report.lost, *report.damages):
        say(f"{damage.part.value}: {damage}")
    if report.torn_tail is not None:
        say(f"torn tail, which the next start cuts: {report.torn_tail}")
    for line in report.unchecked:
        say(f"not checked: {line}")
    many = len(report.lost) + len(report.damages)
    found = f"{many} damaged place{'s' if many > 1 else ''}" if many else "no damage"
    say(
        f"{report.records:,} records in {report.log_end - report.log_start:,} bytes of commit log,"
        f" {report.queues:,} consume queues, {report.index_files:,} index files: {found}"
    )


def _say_metadata(fs: FileSystem, directory: str, say: Callable[[str], None]) -> bool:
    sound = True
    try:
        for found in check_journal(fs, f"{directory}/config"):
            say(f"metadata: {found.file}: offset {found.offset}: {found.reason}")
            sound = sound and not found.rotten
    except OSError as error:
        if error.errno not in LOST_ERRNOS:
            raise
        say(f"metadata: {error.filename}: the disk cannot read this file ({error.strerror}): the disk is failing")
        return False
    return sound
