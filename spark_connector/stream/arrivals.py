"""Tells an idle stream that a message has come: a pull waits at the end of each queue until the broker answers it.

An answer only means that the brokers must be asked again. So nothing is lost when a pull fails: the stream finds the
messages a little later, when it asks anyway.
Neighbours: driver.py (decides when to wait), reading/pulling.py (reads).
"""

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.spark_connector.reading.pulling import QueueReader

logger = logging.getLogger(__name__)

# A pull that waits takes a thread here and a place at the broker. With more queues no pull waits.
MOST_QUEUES = 32
# How long a broker holds a pull. Pulls outlive a `wait`, so an idle stream sends few.
HOLD_MS = 10_000


class Arrivals:
    """The waiting pulls of one stream."""

    def __init__(self, reader: QueueReader) -> None:
        self._reader = reader
        self._threads: ThreadPoolExecutor | None = None
        self._held: dict[MessageQueue, Future[None]] = {}
        self._has_come = Event()

    def wait(self, ends: Mapping[MessageQueue, int], timeout_s: float) -> bool:
        """Wait until a queue of ``ends`` has a message at its end or later; False when none has in time."""
        if len(ends) <= MOST_QUEUES:
            self._hold(ends)
        has_come = self._has_come.wait(timeout_s)
        # Cleared before the brokers are asked: a message that comes after their answer sets the event again.
        self._has_come.clear()
        return has_come

    def close(self) -> None:
        """Begin no more pulls. Waiting pulls end when the consumer is closed."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _hold(self, ends: Mapping[MessageQueue, int]) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MOST_QUEUES, thread_name_prefix="rocketmq-arrivals")
        for queue, pull in list(self._held.items()):
            if pull.done():
                del self._held[queue]
                pull.result()  # raises errors that are not a broker's
        for queue, end in ends.items():
            # Queues that are not asked for any more may still have pulls.
            if queue not in self._held and len(self._held) < MOST_QUEUES:
                self._held[queue] = self._threads.submit(self._pull, queue, end)

    def _pull(self, queue: MessageQueue, end: int) -> None:
        try:
            answer = self._reader.pull_bytes(queue, end, max_count=1, max_bytes=1, wait_ms=HOLD_MS)
        except SkylarkError as error:
            logger.debug("no pull waits at %s: %s", queue, error)
            return
        if answer.max_offset > end:
            self._has_come.set()
