"""Commands for a slave whose log differs, or once differed, from its master's, and for messages that were cut from it.

``broker resyncSlave`` makes the slave copy everything again. Nothing is deleted: log, queues and index are moved to a
new directory inside the store. Metadata stays; the master's will replace it. If the command is interrupted, the store
still starts, and the command can be repeated. ``broker printCut`` prints messages that were cut from the end of a log,
from a file that keeps them.
Neighbours: replication/slave.py (says when the first is needed), store/truncation/saved.py (writes the files).
"""

import json
from collections.abc import Iterator
from datetime import datetime

import click

from skylark.broker.commands.offline import absolute, errors_on_one_line, locked
from skylark.broker.store.aside import move_aside
from skylark.broker.store.log.log_files import LogFile
from skylark.broker.store.log.valid_record import valid_record
from skylark.broker.store.truncation.saved import start_of
from skylark.mqcommon.clock import Clock, SystemClock
from skylark.mqcommon.disk.files import FileSystem, OsFiles
from skylark.mqcommon.errors import ProtocolError, UserError
from skylark.mqcommon.message.compression import decompressed
from skylark.mqcommon.message.flags import COMPRESSED
from skylark.mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, SIZE_MAGIC
from skylark.mqcommon.message.properties import decode_properties
from skylark.mqcommon.message.record import Record


@click.command("printCut")
@click.argument("file")
def print_cut(file: str) -> None:
    """Print messages that were cut from the end of the log, one JSON object a line.

    A log is cut when a slave follows another master, and at a start after a crash that has lost bytes which were not
    flushed. FILE is in the directory cut of the broker's storePathRootDir; the broker may be running. A body is printed
    as text, or as bodyHex if it is not text. A compressed body that cannot be read is printed as it is stored, with
    bodyError. Bytes between messages that are not a message are reported on stderr, with exit code 1.
    """
    with errors_on_one_line(file):
        gaps: list[str] = []
        for row in rows(OsFiles(), absolute(file), gaps):
            click.echo(json.dumps(row, ensure_ascii=False))
        if gaps:
            raise UserError("; ".join(gaps))


def rows(fs: FileSystem, path: str, gaps: list[str]) -> Iterator[dict[str, object]]:
    """A row for each message; bytes that are not a message are reported in ``gaps``.

    The last message may be incomplete: the slave had not received the rest of it. UserError if the file is not a file
    of cut messages.
    """
    start = start_of(path)
    if start is None or not fs.exists(path):
        raise UserError(f"{path} is not a file of messages that were cut: they are in STORE_DIR/cut")
    file = LogFile(path, start, fs.open_map(path, create=False))
    try:
        at: int | None = 0
        while at is not None and at + BLANK_BYTES <= file.size:
            file.load(at, BLANK_BYTES)
            size, magic = SIZE_MAGIC.unpack_from(file.view, at)
            if magic == BLANK_MAGIC:
                at += max(size, BLANK_BYTES)
                continue
            file.load(at, size)
            record, reason = valid_record(file.view[at : at + size], start + at)
            if record is not None:
                yield _row(record)
                at += size
                continue
            following = file.next_sound(start + at + 1)
            if following is not None or size == 0 or at + size <= file.size:
                gaps.append(f"{path}: no sound message at byte {at}: {reason}")
            at = None if following is None else following - start
    finally:
        file.map.close()


def _row(record: Record) -> dict[str, object]:
    row: dict[str, object] = {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "storeTimestamp": record.store_timestamp,
        "bornTimestamp": record.born_timestamp,
        "properties": decode_properties(record.properties.decode("utf-8", "replace")),
    }
    return row | _body(record)


def _body(record: Record) -> dict[str, object]:
    body = record.body
    if record.sys_flag & COMPRESSED:
        try:
            body = decompressed(body, record.sys_flag)
        except ProtocolError as error:
            return {"bodyHex": body.hex(), "bodyError": str(error)}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"bodyHex": body.hex()}


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
    """Move all files with messages aside; returns the directory to which they were moved."""
    if not fs.is_dir(f"{root}/commitlog"):
        raise UserError(f"{root} holds no commit log: give the directory that storePathRootDir names")
    with locked(fs, root):
        aside = f"{root}/diverged-{datetime.fromtimestamp(clock.now_ms() / 1000):%Y%m%d-%H%M%S}"
        if fs.exists(aside):
            raise UserError(f"{aside} exists already: repeat the command in a second")
        move_aside(fs, root, aside)
    return aside
