"""What happens when messages that should be read do not exist: an error, a line in the log, or a row in a table.

The table is a directory of JSON lines, which ``spark.read.json`` reads: one file for each range, named by where it
starts. A task or a micro-batch that is run again replaces the file, so it does not report the same loss twice.
"""

import json
import logging
import os
import time
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from skylark.spark_connector.offsets import DataLost, LostRange, lost_table
from skylark.spark_connector.options.read import FAIL, REPORT, ReadOptions

logger = logging.getLogger(__name__)


def report_lost(lost: Iterable[LostRange], options: ReadOptions) -> None:
    """Raise `DataLost`; or log the same table, and write it to a directory if the options want that."""
    lost = list(lost)
    if options.when_lost == FAIL:
        raise DataLost(lost)
    logger.warning("messages that should be read do not exist:\n%s", lost_table(lost))
    if options.when_lost == REPORT:
        for one in lost:
            _write(one, Path(options.lost_ranges_path))


def _write(lost: LostRange, directory: Path) -> None:
    row = {
        "topic": lost.queue.topic,
        "brokerName": lost.queue.broker_name,
        "queueId": lost.queue.queue_id,
        "from": lost.start,
        "to": lost.end - 1,
        "messages": lost.end - lost.start,
        "reason": lost.reason,
        "seenMs": time.time_ns() // 1_000_000,
    }
    name = sha256(repr((*lost.queue, lost.start)).encode()).hexdigest()[:24]
    directory.mkdir(parents=True, exist_ok=True)
    part = directory / f".{name}.{os.getpid()}"  # Spark does not read files whose name begins with a dot
    part.write_text(json.dumps(row) + "\n")
    part.replace(directory / f"{name}.json")
