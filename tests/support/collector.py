"""A stand-in for an OpenTelemetry collector, made of OpenTelemetry's own protobuf classes."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric as Received


class Collector:
    """A collector that keeps what arrived, request by request."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Received]] = []
        self.headers: dict[str, str] = {}
        self.url = ""

    def take(self, headers: dict[str, str], body: bytes) -> None:
        self.headers = headers
        request = ExportMetricsServiceRequest()
        request.ParseFromString(gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body)
        metrics = [m for r in request.resource_metrics for scope in r.scope_metrics for m in scope.metrics]
        self.requests.append({metric.name: metric for metric in metrics})


@contextmanager
def collecting(status: int = 200) -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take({name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}/v1/metrics"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
