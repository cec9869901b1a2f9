"""Reads a broker's own files where a task runs on the broker's machine, in place of pulls.

The broker says what there is to read, and which log it has: the first and the last message of a range are pulled. When
the files have the same bytes at the same places of the log, they are of this log up to there, because a log has no two
histories with the same end. So a copy that is too old, another broker's directory, or the files of a deposed master do
not pass, and who may not pull a topic cannot read it here either. Entries of queues that are not in the files yet, and
whatever does not fit, are left to pulls.
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
    """The files do not have what the broker has; the reason."""


def local_rows(
    options: ReadOptions, wanted: OffsetRange, schema: pa.Schema, consumer: QueueReader
) -> Generator[pa.RecordBatch, None, int]:
    """The rows of ``wanted`` that the files have, and the offset from which on the broker is to be asked."""
    if wanted.end - wanted.start < _LEAST or options.expression_type == SQL92:
        return wanted.start
    directory = options.local_directory.replace(BROKER_PLACE, wanted.queue.broker_name)
    done = wanted.start
    try:
        for end, batches in _chunks(options, directory, wanted, schema, consumer):
            yield from batches
            done = end
    except (NotHere, OSError) as error:
        _tell(directory, str(error))
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
        raise NotHere(f"the log there is not that of broker {wanted.queue.broker_name}, or ends earlier")


def _refuse(lost: LostRange) -> NoReturn:
    raise NotHere(f"offsets {lost.start} to {lost.end} of the queue: {lost.reason}")


@cache
def _untold(directory: str) -> Iterator[str]:
    """Has one element, until something was told of the directory."""
    return iter([directory])


def _tell(directory: str, reason: str) -> None:
    """Say it once for a directory in this process: a stream asks again with each micro-batch."""
    for untold in _untold(directory):
        logger.warning("option localStorePath: %s is not read, and the broker is asked: %s", untold, reason)
