"""Where the messages of a task go: a producer that sends them all, or one that sends each row once.

The SDK is imported in tasks only: checking columns on the driver does not need the event loop.
Neighbours: writer.py (caller), sending.py, once.py and topic_io.py (what sends).
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol, Self
from uuid import uuid4

import pyarrow as pa

from mqcommon.errors import InvalidArgument
from spark_connector.options.write import WriteOptions
from spark_connector.writing import columns
from spark_connector.writing.columns import Layout
from spark_connector.writing.once import Once, SendLimits
from spark_connector.writing.row_keys import RowKeys
from spark_connector.writing.rows import Lot
from spark_connector.writing.task import Task


class Target(Protocol):
    """Where the messages of a task go."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

    def send(self, lot: Lot) -> int:
        """Send the messages; returns how many were sent, and were not there already."""


class Plain:
    """Sends every message, with the producer's retries."""

    def __init__(self, options: WriteOptions, task: Task) -> None:
        self._options = options
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        from sdk.blocking import Producer

        options = self._options
        self._producer = self._stack.enter_context(
            Producer(
                options.nameserver or None,
                group=options.producer_group,
                send_timeout_ms=options.send_timeout_ms,
                retries=options.num_retries,
                start_timeout_ms=None,
                credentials=options.credentials,
                tls=options.encryption,
            )
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def send_table(self, batches: Sequence[pa.RecordBatch], layout: Layout, topic: str) -> bool:
        """Send the rows without making messages of them.

        False, and nothing is sent, when they have columns that need messages, or one of them is refused: `lots_of`
        says which and why.
        """
        positions = layout.positions
        if not topic or not columns.TOGETHER.issuperset(positions):
            return False
        given = pa.Table.from_batches(batches)
        table = pa.table({name: given.column(position) for name, position in positions.items()})
        tags, keys, flag = [name if name in positions else None for name in (columns.TAGS, columns.KEYS, columns.FLAG)]
        try:
            self._producer.send_arrow(topic, table, body=columns.BODY, tags=tags, keys=keys, flag=flag)
        except InvalidArgument:
            return False
        return True

    def send(self, lot: Lot) -> int:
        from spark_connector.writing.sending import send_all

        send_all(self._producer, lot.topic, lot.messages, lot.places)
        return len(lot.messages)


class Deduplicated:
    """Sends what the topic does not have of this task's rows; see once.py."""

    def __init__(self, options: WriteOptions, task: Task) -> None:
        self._options = options
        self._task = task
        self._stack = ExitStack()
        self._attempt = uuid4().hex[:16]
        self._topics: dict[str, Once] = {}

    def __enter__(self) -> Self:
        from sdk.blocking import Admin, Client, Producer, PullConsumer

        options, enter = self._options, self._stack.enter_context
        client = enter(Client(options.nameserver or None, credentials=options.credentials, tls=options.encryption))
        self._producer = enter(
            Producer(
                client,
                group=options.producer_group,
                send_timeout_ms=options.send_timeout_ms,
                retries=0,
                start_timeout_ms=None,
            )
        )
        self._admin = enter(Admin(client))
        self._consumer = enter(
            PullConsumer(client, group=options.producer_group, heartbeat=False, start_timeout_ms=None)
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def send(self, lot: Lot) -> int:
        once = self._topics.get(lot.topic)
        if once is None:
            once = self._topics[lot.topic] = self._once(lot.topic)
        return once.send(lot.messages, lot.places)

    def _once(self, topic: str) -> Once:
        from spark_connector.writing.topic_io import RealTime, TopicIO, create_missing

        task, options = self._task, self._options
        if options.create_topic:
            create_missing(topic, self._admin, self._consumer, options.send_timeout_ms)
        keys = RowKeys(task.query, task.epoch, task.partition, topic)
        limits = SendLimits(options.send_timeout_ms, options.num_retries)
        io = TopicIO(topic, keys.scope, options, self._producer, self._admin, self._consumer)
        return Once(io, keys, self._attempt, limits, RealTime(), is_retry=task.attempt > 0)
