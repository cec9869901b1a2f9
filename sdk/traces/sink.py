"""Sinks: places for traces other than a topic. A sink is any object with a method ``write``.

`SinkWriter` takes the place of a trace's producer. It makes documents of the records, and calls ``write`` in a thread,
one call at a time; while ``write`` fails it tries again, with pauses, and gives up after RETRY_FOR_S. `JsonLinesSink`
writes documents to a file, sdk/traces/elasticsearch.py to Elasticsearch.
"""

import dataclasses
import io
import os
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from operator import attrgetter
from random import Random
from types import TracebackType
from typing import Annotated, Any, Protocol, Self

import orjson
import trio

from skylark.mqcommon.arguments import wrong_type
from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.logs.rotated_file import RotatedFile, Rotation
from skylark.mqcommon.message.message import Message
from skylark.mqcommon.options.fields import camel_case
from skylark.sdk.checked import Count, NotNegative, checked_methods
from skylark.sdk.traces.records import TraceRecord, decode_records

# How long a document that a sink does not accept is passed to it again.
RETRY_FOR_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_FIELDS = tuple(field.name for field in dataclasses.fields(TraceRecord))
_NAMES = tuple("type" if name == "kind" else camel_case(name) for name in _FIELDS)
_values = attrgetter(*_FIELDS)

#: A record of a trace as names and values that JSON can express.
Document = dict[str, Any]


class TraceSink(Protocol):
    """A place for traces. One sink may serve several clients, so it must be safe to call from several threads."""

    def write(self, documents: Sequence[Document]) -> None:
        """Store the documents; called in a thread. After an error they are passed again; `NotTaken` says which."""


class NotTaken(SkylarkError):
    """A sink has accepted only some documents: pass ``again`` to it later; it will never accept ``refused`` others."""

    def __init__(self, reason: str, again: Sequence[Document] = (), refused: int = 0) -> None:
        super().__init__(reason)
        self.again = again
        self.refused = refused


class RecordsLost(SkylarkError):
    """``count`` records could not be written."""

    def __init__(self, count: int, reason: str) -> None:
        super().__init__(reason)
        self.count = count


def check_trace(name: str, value: object) -> None:
    """TypeError unless ``value`` is True, False or a sink."""
    if not isinstance(value, bool) and not callable(getattr(value, "write", None)):
        raise wrong_type(name, "True, False or a sink with a method write", value)


Trace = Annotated[bool | TraceSink, check_trace]


class SinkWriter:
    """Writes records to a sink. ``client_id`` is called when there are records to write: the id is known only then."""

    def __init__(self, sink: TraceSink, client_id: Callable[[], str]) -> None:
        self._sink = sink
        self._client_id = client_id
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, Random())
        self._one_at_a_time = trio.CapacityLimiter(1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def send(self, message: Message) -> None:
        """Write the records of a trace message. Raises RecordsLost."""
        left: Sequence[Document] = await self._in_thread(partial(documents_of, message.body, self._client_id()))
        refused, reason, failures = 0, "", 0
        give_up_at = trio.current_time() + RETRY_FOR_S
        while left:
            try:
                await self._in_thread(partial(self._sink.write, left))
                break
            except NotTaken as error:
                left, reason = error.again, str(error)
                refused += error.refused
            except Exception as error:  # any error of a sink: the next try may succeed
                reason = f"{type(error).__name__}: {error}"
            failures += 1
            pause_s = self._backoff.pause_s(failures)
            if left and trio.current_time() + pause_s > give_up_at:
                refused += len(left)
                break
            await trio.sleep(pause_s if left else 0)
        if refused:
            raise RecordsLost(refused, reason)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        # The end of a client must not wait for a thread that waits for a server.
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._one_at_a_time)


def documents_of(body: bytes, client_id: str) -> list[Document]:
    """The records of a trace message of the client ``client_id``, as documents."""
    return [_document(record, client_id) for record in decode_records(body.decode("utf-8", "replace"))]


def _document(record: TraceRecord, client_id: str) -> Document:
    document = {name: value for name, value in zip(_NAMES, _values(record), strict=True) if value is not None}
    if record.timestamp_ms is not None:
        seconds, ms = divmod(record.timestamp_ms, 1_000)
        document["time"] = f"{_second(seconds)}.{ms:03d}Z"
    document["clientId"] = client_id
    return document


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    """Most records of a message are of the same second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@checked_methods
class JsonLinesSink:
    """Appends each record to the file ``path`` as a line of JSON.

    A file of ``max_bytes`` is renamed to ``path.1``, an older file to ``path.2``, and so on; ``keep`` old files are
    kept. A file that another program renames or removes is created again. Give each process its own file.
    """

    def __init__(self, path: str, *, max_bytes: Count = 100 * 1024 * 1024, keep: NotNegative = 5) -> None:
        self._file = RotatedFile(os.path.expanduser(path), Rotation(max_bytes, 0, keep))
        self._lock = threading.Lock()

    def write(self, documents: Sequence[Document]) -> None:
        """Append the documents; raises OSError when there is no room, or no such directory can be made."""
        # Each text is freed at once: keeping a list of them makes orjson ten times slower.
        lines = io.BytesIO()
        for document in documents:
            lines.write(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))
        with self._lock:
            self._file.write(lines.getvalue())

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        with self._lock:
            self._file.close()
