"""`ElasticsearchSink`: traces as documents of an index of Elasticsearch or OpenSearch, by the bulk API."""

import hashlib
import http.client
import json
import os
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson

from skylark.mqcommon.errors import InvalidArgument
from skylark.sdk.checked import Milliseconds, checked_methods
from skylark.sdk.traces.sink import Document, NotTaken

# The answer to a bulk request has some 200 bytes for each document.
MAX_ANSWER_BYTES = 16 * 1024 * 1024
_SHOWN_CHARS = 300
_STORED = (200, 201)
# An earlier try of this client was stored.
_ALREADY_THERE = 409
_TOO_MANY = 429


@checked_methods
class ElasticsearchSink:
    """Sends each record to the server at ``url``, http or https, which may contain user and password.

    ``index`` is the index or the data stream; with ``%Y``, ``%m`` and ``%d`` in it, the name contains the record's day
    (UTC). A document's id is made of its content, so that a document sent twice is stored once. ``ca_file``:
    certificates of the CAs that may sign the server's certificate, instead of the system's CAs.
    """

    def __init__(
        self,
        url: str,
        *,
        index: str = "skylark-trace",
        api_key: str | None = None,
        ca_file: str | None = None,
        timeout_ms: Milliseconds = 10_000,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidArgument("url must be http://HOST:PORT or https://HOST:PORT, as in http://127.0.0.1:9200")
        if not index:
            raise InvalidArgument("index is empty; give the name of an index or of a data stream")
        self._host, self._port, self._path = parts.hostname, parts.port, f"{parts.path.rstrip('/')}/_bulk"
        self._is_tls, self._ca_file = parts.scheme == "https", ca_file
        self._index = index
        self._timeout_s = timeout_ms / 1000
        self._headers = {"Content-Type": "application/x-ndjson"}
        if api_key is not None:
            self._headers["Authorization"] = f"ApiKey {api_key}"
        elif parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        # A forked process has its parent's connection, and needs its own.
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"ElasticsearchSink({self._host}:{self._port}, index={self._index!r})"

    def write(self, documents: Sequence[Document]) -> None:
        """Store the documents. Raises NotTaken, OSError or HTTPException."""
        body = b"".join(self._lines(documents))
        with self._lock:
            answer = self._post(body)
        if answer.get("errors"):
            _check_items(documents, answer.get("items", []))

    def close(self) -> None:
        """Close the connection; the next write opens it again."""
        with self._lock:
            self._drop_connection()

    def _lines(self, documents: Sequence[Document]) -> Iterator[bytes]:
        for document in documents:
            line = orjson.dumps(document)
            index = self._index
            if "%" in index:
                index = datetime.fromtimestamp(document.get("timestampMs", 0) / 1000, UTC).strftime(index)
            key = hashlib.sha256(line).hexdigest()[:40]
            yield b"%s\n%s\n" % (orjson.dumps({"create": {"_index": index, "_id": key}}), line)

    def _post(self, body: bytes) -> dict[str, Any]:
        try:
            connection = self._open()
            connection.request("POST", self._path, body, self._headers)
            response = connection.getresponse()
            text = response.read(MAX_ANSWER_BYTES)
            if not response.isclosed():
                raise OSError(f"{self} answered with more than {MAX_ANSWER_BYTES} bytes")
        except BaseException:
            self._drop_connection()
            raise
        if response.status != 200:
            shown = text[:_SHOWN_CHARS].decode("utf-8", "replace")
            raise OSError(f"{self} answered {response.status} {response.reason}: {shown}")
        answer = json.loads(text)
        if not isinstance(answer, dict):
            raise OSError(f"{self} gave no answer to a bulk request")
        return answer

    def _open(self) -> http.client.HTTPConnection:
        if self._pid != os.getpid():
            self._pid, self._connection = os.getpid(), None
        if self._connection is None:
            if self._is_tls:
                context = ssl.create_default_context(cafile=self._ca_file)
                self._connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=self._timeout_s, context=context
                )
            else:
                self._connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return self._connection

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _check_items(documents: Sequence[Document], items: Sequence[Any]) -> None:
    """Raise NotTaken if not every document is stored: documents that a busy server refused may be sent again."""
    again, refused, reason = [], 0, ""
    for document, item in zip(documents, items, strict=True):
        outcome = next(iter(item.values()))
        status = outcome.get("status", 0)
        if status in _STORED or status == _ALREADY_THERE:
            continue
        reason = f"{status}: {json.dumps(outcome.get('error'))[:_SHOWN_CHARS]}"
        if status == _TOO_MANY or status >= 500:
            again.append(document)
        else:
            refused += 1
    if again or refused:
        raise NotTaken(reason, again, refused)
