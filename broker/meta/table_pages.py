"""Pages of a broker's tables for slaves, see `PageRequestHeader` in remoting/protocol/requests/replication.py.

Neighbours: admin/topics.py, admin/groups.py and offset_handlers.py answer with them; replication/master_api.py asks.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.net.answers import HEADER_BYTES, answer_steps
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.steps import Steps
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import dialect_for, encode_body
from skylark.remoting.protocol.request import Request
from skylark.remoting.protocol.requests.replication import PageRequestHeader, PageResponseHeader

logger = logging.getLogger(__name__)

# Entries of a page: it costs both sides some milliseconds.
PAGE_VALUES = 500
REMEDY = (
    "use a Skylark slave, which takes pages, or raise frameMaxLength here and"
    " -Dcom.rocketmq.remoting.frameMaxLength at the peer"
)

Rows = Mapping[str, Any]
B = TypeVar("B", bound=Body)


def some_rows(table: Rows, first: int | None, most: int | None) -> Rows:
    """The rows that a RocketMQ 5 slave asks for by number; ``table`` itself for callers that give no numbers.

    A RocketMQ 5 slave begins again when the version has changed, since the order of rows may have changed, too.
    """
    if first is None or most is None:
        return table
    start = max(first, 0)
    return dict(islice(table.items(), start, start + max(most, 0)))


class Cursor:
    """Where the last page of a table ended, so that the next page need not count all earlier rows again."""

    def __init__(self) -> None:
        self._table: Rows = {}
        self._rows: Iterator[tuple[str, Any]] = iter(())
        self._at = -1
        self._removals = 0

    def read(
        self, table: Rows, start: int, removals: int, values: int, values_of: Callable[[Any], int]
    ) -> dict[str, Any]:
        """Rows from number ``start`` on with ``values`` values in all. ``removals``: the rows ever removed."""
        rows: dict[str, Any] = {}
        at, self._at = self._at, -1
        # A dict's iterator only notices a changed size; it does not notice one row added and another removed.
        if at == start and self._table is table and self._removals == removals:
            with suppress(RuntimeError):  # the table has grown since
                rows = dict(_first(self._rows, values, values_of))
        # The page does not begin where the last one ended, or its iterator ended while rows were added: count from the
        # first row.
        if not rows:
            self._table, self._removals, self._rows = table, removals, islice(table.items(), start, None)
            rows = dict(_first(self._rows, values, values_of))
        self._at = start + len(rows)
        return rows


def answer_whole_or_page(
    what: Request[Any, Any, Any, B],
    channel: Channel,
    request: Command,
    table: Rows,
    cursor: Cursor,
    removals: int,
    body_of: Callable[[Rows], B],
    *,
    values: int = PAGE_VALUES,
    values_of: Callable[[Any], int] = lambda row: 1,
) -> Steps[Command]:
    """The requested page, or the whole ``table``; refused when the whole table does not fit into a frame.

    ``removals``: how many entries were ever removed. A page has ``values`` values, of which each entry has
    ``values_of`` itself.
    """
    asked = PageRequestHeader.from_ext(request.ext)
    if asked.page_from is None:
        whole = body_of(table)  # a copy, which takes long
        yield None
        return (yield from answer_steps(what, request, whole, channel.max_frame_bytes, remedy=REMEDY))
    # Each row that was removed since the last page has moved the rows after it forward by one. The page begins earlier
    # by the number of removed rows: a row may come twice, but none is missed.
    since = removals - (asked.page_removals or 0)
    start = max(asked.page_from - since, 0) if since >= 0 else 0
    rows = cursor.read(table, start, removals, values, values_of)
    data, count = _encoded(request, rows, body_of, channel.max_frame_bytes - HEADER_BYTES)
    answer = request.respond(body=data)
    if start + count < len(table):
        answer.ext = PageResponseHeader(start + count, removals).to_ext()
    return answer


def _first(rows: Iterable[tuple[str, Any]], values: int, values_of: Callable[[Any], int]) -> Iterable[tuple[str, Any]]:
    for row in rows:
        yield row
        values -= values_of(row[1])
        if values <= 0:
            return


def _encoded(request: Command, rows: Rows, body_of: Callable[[Rows], Body], limit: int) -> tuple[bytes, int]:
    """As many of the first ``rows`` as fit, and their number; a row that never fits is left out."""
    count = len(rows)
    while True:
        data = encode_body(body_of(dict(islice(rows.items(), count))), dialect_for(request))
        if len(data) <= limit:
            return data, count
        if count == 0:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"a page has {len(data)} bytes without an entry")
        if count == 1:
            logger.error("%.300s cannot be copied by slaves: it has %d bytes", next(iter(rows)), len(data))
            return encode_body(body_of({}), dialect_for(request)), 1
        count //= 2
