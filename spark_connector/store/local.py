"""Reads a broker's own files where a task runs on the broker's machine, in place of pulls.

The first and the last message of a range are pulled: they show what there is to read, and which log the broker has.
When the files have the same bytes at the same places of the log, they belong to this log up to these places, because a
log has no two histories with the same end. So an outdated copy, another broker's directory, or the files of a deposed
master do not pass; and a user who may not pull a topic cannot read it here either. Entries that are not in the files of
their queues yet, and whatever does not fit, are left to pulls.
"""

import logging
import os
from collections.abc import Generator, Iterator
from functools import cache
from typing import NoReturn

import pyarrow as pa

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message.record import decode_record
from skylark.spark_connector.offsets import LostRange, OffsetRange
from skylark.spark_connector.options.read import SQL92, ReadOptions
from skylark.spark_connector.reading.pulling import AWAY, MAX_PULL_BYTES, QueueReader, is_other_topic
from skylark.spark_connector.store.files import NOT_IN_FILES, QUEUES, LogBytes, ReadOnlyFiles, StorePart
from skylark.spark_connector.store.reader import StoreRows

logger = logging.getLogger(__name__)

#: In `localStorePath`: where the name of the broker goes.
BROKER_PLACE = "{broker}"
# To ask for the first and the last message costs as much as to pull some thousand.
_LEAST = 10_000


class NotHere(Exception):
    """The files do not have the broker's messages; the text is the reason."""


def local_rows(
    options: ReadOptions, wanted: OffsetRange, schema: pa.Schema, consumer: QueueReader
) -> Generator[pa.RecordBatch, None, int]:
    """Yields the rows of ``wanted`` that the files have; returns the offset from which on the broker must be asked."""
    if wanted.end - wanted.start < _LEAST or options.expression_type == SQL92:
        return wanted.start
    directory = options.local_directory.replace(BROKER_PLACE, wanted.queue.broker_name)
    done = wanted.start
    try:
        for end, batches in _chunks(options, directory, wanted, schema, consumer):
            yield from batches
            done = end
    except (NotHere, OSError) as error:
        _log_once(directory, str(error))
    return done


def _chunks(
    options: ReadOptions, directory: str, wanted: OffsetRange, schema: pa.Schema, consumer: QueueReader
) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """(next offset, rows before it), in order. Raises NotHere where the files end or do not fit."""
    queue = wanted.queue
    if not os.path.isdir(directory):
        raise NotHere("there is no such directory on this machine")
    if not os.path.isdir(f"{directory}/{QUEUES}/{queue.topic}/{queue.queue_id}"):
        raise NotHere(f"it has no files of queue {queue.queue_id} of topic {queue.topic}")
    log = LogBytes(ReadOnlyFiles(), directory)
    for offset in (wanted.start, wanted.end - 1):
        _check_same(options, log, consumer, wanted, offset)
    # `_check_same` has compared the last message.
    part = StorePart(wanted, 0, wanted.end, b"", wanted.start, False, QUEUES, NOT_IN_FILES)
    rows = StoreRows(directory, log, part, schema, options, _refuse)
    rows.blanks_are_lost = True
    yield from rows.chunks()


def _check_same(options: ReadOptions, log: LogBytes, consumer: QueueReader, wanted: OffsetRange, offset: int) -> None:
    """NotHere unless the files have the message that the broker has at this offset."""
    try:
        pulled = consumer.pull_bytes(
            wanted.queue, offset, max_count=1, max_bytes=MAX_PULL_BYTES, wait_ms=options.pull_timeout_ms
        )
        record = decode_record(pulled.data, check_crc=False) if pulled.data else None
    except AWAY as error:
        raise NotHere(f"the broker does not answer: {error}") from None
    except ProtocolError as error:
        raise NotHere(f"the broker's message at offset {offset} cannot be decoded: {error}") from None
    if is_other_topic(pulled, wanted.created_ms):
        raise NotHere("the topic was deleted and made again")
    if record is None or record.queue_offset != offset:
        raise NotHere(f"the broker has no single message at offset {offset}")
    if log.read(record.physical_offset, record.size) != pulled.data[: record.size]:
        raise NotHere(f"the log there does not belong to broker {wanted.queue.broker_name}, or ends earlier")


def _refuse(lost: LostRange) -> NoReturn:
    raise NotHere(f"offsets {lost.start} to {lost.end} of the queue: {lost.reason}")


@cache
def _not_logged(directory: str) -> Iterator[str]:
    """An iterator with one element, which the first log line about the directory takes."""
    return iter([directory])


def _log_once(directory: str, reason: str) -> None:
    """Log ``reason`` once for a directory in this process: a stream asks again with each micro-batch."""
    for place in _not_logged(directory):
        logger.warning("option localStorePath: %s is not read, and the broker is asked: %s", place, reason)
