"""Which rows a task has: of which query, epoch and partition. Spark tells its tasks, and not the driver's writers."""

from collections.abc import Callable
from typing import NamedTuple

from pyspark import TaskContext

from mqcommon.errors import UserError
from spark_connector.options.write import WriteOptions

# Properties that Spark gives to tasks. The query's id is in its checkpoint: restarts do not change it.
QUERY_ID = "sql.streaming.queryId"
EPOCH = "streaming.sql.batchId"
APPLICATION_ID = "spark.app.id"
EXECUTION_ID = "spark.sql.execution.id"


class Task(NamedTuple):
    """A task that is run again has the same query, epoch and partition, and the next ``attempt`` in this run."""

    query: str
    epoch: str
    partition: int
    attempt: int = 0


def this_task(options: WriteOptions, *, is_stream: bool) -> Task:
    """The task that runs in this process."""
    context = TaskContext.get()
    assert context is not None  # there is one in every task
    task = task_of(context.getLocalProperty, context.partitionId(), options, is_stream=is_stream)
    return task._replace(attempt=context.attemptNumber())


def task_of(
    property_of: Callable[[str], str | None], partition: int, options: WriteOptions, *, is_stream: bool
) -> Task:
    """The task with these properties; UserError when Spark does not say what `dedup` has to know.

    A batch is one query in one epoch. Unless it has an id of the user's, that is true for this run of it only.
    """
    if is_stream:
        query, epoch = options.query_id or property_of(QUERY_ID), property_of(EPOCH)
    elif options.query_id:
        query, epoch = options.query_id, "batch"
    else:
        query, epoch = property_of(APPLICATION_ID), property_of(EXECUTION_ID)
    if options.dedup and not (query and epoch):
        raise UserError(
            "this version of Spark does not tell which query and epoch is written, so that messages cannot be"
            ' recognised; use .option("dedup", "false")'
        )
    return Task(query or "", epoch or "", partition)
