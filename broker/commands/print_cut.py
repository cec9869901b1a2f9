"""``broker printCut``: prints the messages that were cut from a slave's log, from a file that keeps them.

Neighbours: store/truncation/saved.py (writes the files), cli.py.
"""

import json
from collections.abc import Iterator

import click

from broker.commands.offline import absolute, errors_on_one_line
from broker.store.log.valid_record import valid_record
from broker.store.truncation.saved import start_of
from mqcommon.disk.files import FileSystem, OsFiles
from mqcommon.errors import ProtocolError, UserError
from mqcommon.message.compression import decompressed
from mqcommon.message.flags import COMPRESSED
from mqcommon.message.layout import BLANK_BYTES, BLANK_MAGIC, SIZE_MAGIC
from mqcommon.message.properties import decode_properties
from mqcommon.message.record import Record


@click.command("printCut")
@click.argument("file")
def print_cut(file: str) -> None:
    """Print messages that a slave's log lost when it followed another master, one JSON object a line.

    FILE is in the directory cut of the broker's storePathRootDir; the broker may be running. A body is printed as text,
    or as bodyHex if it is none. One that is compressed and cannot be read is printed as it is stored, with bodyError.
    """
    with errors_on_one_line(file):
        for row in rows(OsFiles(), absolute(file)):
            click.echo(json.dumps(row, ensure_ascii=False))


def rows(fs: FileSystem, path: str) -> Iterator[dict[str, object]]:
    """A row for each message. UserError if the file is none that keeps messages."""
    start = start_of(path)
    if start is None or not fs.exists(path):
        raise UserError(f"{path} is not a file of messages that were cut: they are in STORE_DIR/cut")
    data = fs.read(path)
    at = 0
    while at + BLANK_BYTES <= len(data):
        size, magic = SIZE_MAGIC.unpack_from(data, at)
        if magic != BLANK_MAGIC and at + size <= len(data):
            record, reason = valid_record(data[at : at + size], start + at)
            if record is None:
                raise UserError(f"{path}: no sound message at byte {at}: {reason}")
            yield _row(record)
        # A slave may have received only a part of the last one.
        at += max(size, BLANK_BYTES)


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
