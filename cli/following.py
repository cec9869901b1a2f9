"""Reads a topic for `skylark tail`, without joining a group: each queue by a task of its own."""

import errno
import os
import stat
import time

import click
import trio

from skylark.cli.durations import FIRST, LAST
from skylark.mqadmin.render import time_text, to_json
from skylark.mqadmin.session import Session
from skylark.mqcommon.errors import RemotingError, RouteNotFound
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import TOOLS_GROUP
from skylark.mqcommon.visible import visible
from skylark.remoting.protocol.requests.clients import SUB_ALL
from skylark.sdk.admin.reports.message_report import body_of, body_text, message_report
from skylark.sdk.consumer.expression import Sql
from skylark.sdk.consumer.pull import PullConsumer

# A topic that does not exist yet is looked up in this interval.
_ABSENT_TOPIC_S = 0.5
# The queues of a topic are looked up in this interval, as there may be new ones.
_NEW_QUEUES_S = 15.0
_STDOUT = 1


class Following:
    """Prints the messages of ``topic``.

    ``group``: read from the offsets of this group, and what it subscribes to, unless ``expression`` says otherwise.
    ``start``: `FIRST`, `LAST` or a time in ms since 1970. ``count``: end after this many messages; None for no limit.
    """

    def __init__(
        self,
        session: Session,
        topic: str,
        group: str | None,
        start: str | int,
        expression: str | Sql | None,
        count: int | None,
        *,
        in_json: bool,
    ) -> None:
        self._session = session
        self._topic = topic
        self._group = group
        self._start = start
        self._expression = expression
        self._left = count
        self._in_json = in_json
        # Whether the group has committed an offset of any queue.
        self._has_offsets = False

    async def run(self, *, follow: bool) -> None:
        """Print messages until cancelled; without ``follow`` to the end that the topic has now.

        Raises RouteNotFound for an unknown topic, unless it is followed.
        """
        async with self._session.consumer(self._group or TOOLS_GROUP) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(_end_with_reader)
            if follow:
                await self._wait_for_topic(consumer)
            await self._print_queues(consumer, self._expression or await self._subscription(), follow=follow)
            nursery.cancel_scope.cancel()

    async def _print_queues(self, consumer: PullConsumer, expression: str | Sql, *, follow: bool) -> None:
        known: set[MessageQueue] = set()
        began_ms = round(time.time() * 1000)
        is_late = False
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    for queue in await consumer.message_queues(self._topic):
                        if queue in known:
                            continue
                        begin = await self._first_offset(consumer, queue)
                        end = None if follow else await consumer.max_offset(queue)
                        nursery.start_soon(self._read, consumer, queue, begin, end, expression, nursery.cancel_scope)
                        known.add(queue)
                except (RouteNotFound, RemotingError):
                    # A broker that restarts is not registered for a while. The known queues are read on.
                    if not is_late:
                        raise
                if not is_late and self._group is not None and not self._has_offsets:
                    click.echo(
                        f"group {self._group} has no offsets of topic {self._topic}, which is read from its end; "
                        "skylark admin consumerProgress lists all groups",
                        err=True,
                    )
                if not follow:
                    return
                is_late = True
                if self._start == LAST:
                    # The broker of a queue that is found later may have been away, with messages from before.
                    self._start = began_ms
                await trio.sleep(_NEW_QUEUES_S)

    async def _wait_for_topic(self, consumer: PullConsumer) -> None:
        """Return when the topic exists. A message that created the topic is printed, too."""
        is_told = False
        while True:
            try:
                await consumer.message_queues(self._topic)
                return
            except RouteNotFound:
                if not is_told:
                    click.echo(f"waiting for topic {self._topic}, which does not exist yet", err=True)
                    is_told = True
            self._start = FIRST
            await trio.sleep(_ABSENT_TOPIC_S)

    async def _subscription(self) -> str | Sql:
        """What the group reads of the topic, while it has consumers; all messages else."""
        found = self._group and await self._session.admin.query_subscription(self._group, self._topic)
        if not found:
            return SUB_ALL
        return found.sub_string if found.is_tag else Sql(found.sub_string)

    async def _first_offset(self, consumer: PullConsumer, queue: MessageQueue) -> int:
        if self._group is not None and (committed := await consumer.committed_offset(queue)) is not None:
            self._has_offsets = True
            return committed
        if self._start == FIRST:
            return await consumer.min_offset(queue)
        if self._start == LAST:
            return await consumer.max_offset(queue)
        assert isinstance(self._start, int)
        return await consumer.search_offset(queue, self._start)

    async def _read(
        self,
        consumer: PullConsumer,
        queue: MessageQueue,
        begin: int,
        end: int | None,
        expression: str | Sql,
        everything: trio.CancelScope,
    ) -> None:
        """Print the messages of one queue; ends ``everything`` when enough messages are printed."""
        async for batch in consumer.stream(queue, begin, end, expression=expression):
            for message in batch:
                # The reader of another queue may have printed the last one.
                if self._left == 0:
                    return
                click.echo(self._line(message))
                if self._left is not None:
                    self._left -= 1
                    if self._left == 0:
                        everything.cancel()

    def _line(self, message: MessageExt) -> str:
        if self._in_json:
            return to_json(message_report(message), one_line=True)
        parts = [time_text(message.store_timestamp), f"{message.broker_name}/{message.queue_id}:{message.queue_offset}"]
        parts += [part for part in (message.tags, message.keys) if part]
        # A body with line feeds stays one line: its second line could look like another message.
        return visible("  ".join([*parts, body_text(body_of(message), "utf-8")])).replace("\n", "\\n")


async def _end_with_reader() -> None:
    """Raise BrokenPipeError when stdout is a pipe whose reader has gone, also while there is nothing to print."""
    if not stat.S_ISFIFO(os.fstat(_STDOUT).st_mode):
        await trio.sleep_forever()
    # The end for writing becomes readable only by an error.
    await trio.lowlevel.wait_readable(_STDOUT)
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
