"""The bulk API, as a server in a thread answers it."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from skylark import ElasticsearchSink
from skylark.mqcommon.errors import InvalidArgument
from skylark.sdk.traces.sink import NotTaken

DOCUMENTS = [{"msgId": f"M{number}", "timestampMs": 1_700_000_000_000} for number in range(3)]


class Server:
    """Keeps requests; ``status`` and ``outcomes`` are what it answers."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], list[dict[str, Any]]]] = []
        self.status = 200
        self.outcomes: Callable[[int], list[int]] = lambda count: [201] * count
        self.connections = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer.connections += 1

            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers["Content-Length"])).decode()
                lines = [json.loads(line) for line in text.splitlines()]
                outer.requests.append((self.path, dict(self.headers), lines))
                statuses = outer.outcomes(len(lines) // 2)
                items = [{"create": {"status": status, "error": {"type": f"e{status}"}}} for status in statuses]
                body = json.dumps({"errors": any(status >= 300 for status in statuses), "items": items}).encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.http.server_port}"
        self._thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def sink(server: Server) -> Iterator[ElasticsearchSink]:
    sink = ElasticsearchSink(f"http://user:p%40ss@{server.address}/prefix/", index="t-%Y.%m.%d")
    yield sink
    sink.close()


def test_documents_are_created_with_ids_of_their_own(server: Server, sink: ElasticsearchSink) -> None:
    sink.write(DOCUMENTS)
    sink.write(DOCUMENTS)
    (path, headers, lines), (_, _, again) = server.requests
    assert path == "/prefix/_bulk"
    assert headers["Content-Type"] == "application/x-ndjson"
    assert headers["Authorization"] == "Basic dXNlcjpwQHNz"
    assert lines[1::2] == DOCUMENTS
    assert lines == again
    heads = [line["create"] for line in lines[::2]]
    assert {head["_index"] for head in heads} == {"t-2023.11.14"}
    assert len({head["_id"] for head in heads}) == 3
    assert server.connections == 1


def test_an_api_key_is_sent_and_no_secret_is_shown(server: Server, sink: ElasticsearchSink) -> None:
    other = ElasticsearchSink(f"http://{server.address}", api_key="c2VjcmV0")
    other.write(DOCUMENTS)
    other.close()
    assert server.requests[0][1]["Authorization"] == "ApiKey c2VjcmV0"
    assert "c2VjcmV0" not in repr(other)
    assert "p@ss" not in repr(sink)
    assert "p%40ss" not in repr(sink)


def test_documents_that_met_a_busy_server_are_sent_again_and_bad_ones_are_not(
    server: Server, sink: ElasticsearchSink
) -> None:
    server.outcomes = lambda count: [201, 429, 400]
    with pytest.raises(NotTaken, match="e400") as error:
        sink.write(DOCUMENTS)
    assert (error.value.again, error.value.refused) == ([DOCUMENTS[1]], 1)
    # 409: an earlier try has stored it, and its answer was lost.
    server.outcomes = lambda count: [409] * count
    sink.write(DOCUMENTS)


@pytest.mark.parametrize("status", [401, 413, 429, 503])
def test_an_error_of_the_server_says_which(server: Server, sink: ElasticsearchSink, status: int) -> None:
    server.status = status
    with pytest.raises(OSError, match=f"answered {status}"):
        sink.write(DOCUMENTS)
    server.status = 200
    sink.write(DOCUMENTS)


def test_a_connection_that_the_server_closed_is_opened_again(server: Server, sink: ElasticsearchSink) -> None:
    sink.write(DOCUMENTS)
    sink.close()
    sink.write(DOCUMENTS)
    assert server.connections == 2


def test_a_server_that_is_away_is_an_error_for_later(server: Server) -> None:
    server.close()
    sink = ElasticsearchSink(f"http://{server.address}")
    with pytest.raises(OSError, match="refused"):
        sink.write(DOCUMENTS)


@pytest.mark.parametrize("url", ["127.0.0.1:9200", "ftp://x", "http://", ""])
def test_mistakes_in_the_address(url: str) -> None:
    with pytest.raises(InvalidArgument, match="url must be"):
        ElasticsearchSink(url)
    with pytest.raises(InvalidArgument, match="index is empty"):
        ElasticsearchSink("http://x", index="")
