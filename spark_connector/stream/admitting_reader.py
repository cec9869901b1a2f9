"""The stream reader for PySpark 4.2 and later, which know limits, the trigger AvailableNow, and what is waiting.

Neighbours: reader.py (the rest), offsets.py (what limits mean).
"""

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from skylark.spark_connector.one_line import one_line
from skylark.spark_connector.stream.offsets import StreamOffsets
from skylark.spark_connector.stream.reader import RocketMQStreamReader
from skylark.spark_connector.stream.report import REPORT


class AdmittingStreamReader(RocketMQStreamReader, SupportsTriggerAvailableNow):
    """A reader whose micro-batches have as much as the options allow."""

    #: The last start, as it was read and as Spark keeps it.
    _start: tuple[StreamOffsets, dict[str, Any]] | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the limits. Limits of Spark cannot be combined, so `latestOffset` reads the options, too."""
        options = self._options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        least = options.min_offsets_per_trigger
        return ReadMinRows(least) if least else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override]
        """The end of the next micro-batch; ``start`` when there is none."""
        with one_line():
            driver, first = self._driving(), self._read(start)
            # The trigger Once wants all messages, whatever the options are.
            end = driver.after(first, is_limited=not isinstance(limit, ReadAllAvailable))
            # Spark calls this when a micro-batch is done: for the last one of AvailableNow there is no other sign.
            driver.commit(first)
            return self._written(end)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read only messages that exist now, from now on."""
        with one_line():
            self._driving().freeze()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the queues ended in the last trigger, and the report, for the progress of the query."""
        driver = self._driving()
        if driver.newest is None:
            return None
        newest, report = self._written(driver.newest), driver.report().to_dict()
        return {**newest, REPORT: report} if report else newest

    # The offsets of thousands of queues take longer to read and to write than a broker to tell their ends. An idle
    # stream reads and writes the same ones all the time.

    def _read(self, start: dict[str, Any]) -> StreamOffsets:
        if self._start is None or self._start[1] != start:
            self._start = (StreamOffsets.from_dict(start), start)
        return self._start[0]

    def _written(self, offsets: StreamOffsets) -> dict[str, Any]:
        """As Spark keeps them."""
        if self._start is not None and self._start[0] is offsets:
            return self._start[1]
        return offsets.to_dict()
