"""A proxy's metrics: their names and sources."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple

from skylark.mqcommon.metrics.metric import Column, Histogram, Metric, column, flag, single
from skylark.mqproxy.sessions import Sessions
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.net.steps import Steps

PROXY_UP = Metric("rocketmq_proxy_up", "gauge", "", (), "1 while the proxy serves, and 0 while it starts or stops")
RPC_LATENCY = Metric(
    "rocketmq_rpc_latency",
    "histogram",
    "milliseconds",
    ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
    "Time of calls; for receives it includes the wait for messages",
)
CLIENTS = Metric("skylark_proxy_clients", "gauge", "", ("client_type",), "Clients that sent settings and live")
CONNECTIONS = Metric("skylark_connections", "gauge", "", (), "Connections of clients")
WAITING = Metric("skylark_proxy_waiting_receives", "gauge", "", (), "Receives that wait for messages")
RENEWED = Metric("skylark_proxy_renewed_messages", "gauge", "", (), "Messages that are kept hidden for their clients")
RENEWALS = Metric("skylark_proxy_renewals_total", "counter", "", ("result",), "Renewals of such messages")

PROXY_METRICS = (PROXY_UP, RPC_LATENCY, CLIENTS, CONNECTIONS, WAITING, RENEWED, RENEWALS)

# Calls that may wait for messages.
_RECEIVES = frozenset({"ReceiveMessage", "PullMessage"})


class Served(NamedTuple):
    """The part of a serving proxy that the metrics read."""

    sessions: Sessions
    connections: Callable[[], int]


class Meters:
    """The counts of a proxy. ``served`` is set while the proxy serves."""

    def __init__(self, now_s: Callable[[], float] = perf_counter) -> None:
        self.now_s = now_s
        self._waiting = 0
        # (method, code of the answer) → times.
        self._times: dict[tuple[str, int], Histogram] = {}
        self.served: Served | None = None

    def count(self, name: str, code: wire.Code, began_s: float) -> None:
        """Count a call of the method ``name``, which is answered with ``code``."""
        times = self._times.get((name, code))
        if times is None:
            times = self._times[name, code] = Histogram()
        times.add((self.now_s() - began_s) * 1_000)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A block in which a call may wait for messages."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def unready(self) -> str:
        """Why clients should not be sent to this proxy; "" if they may be."""
        return "" if self.served is not None else "the proxy starts or stops"

    def collect(self) -> Steps[list[Column]]:
        """All columns. Steps are what the exporter takes; all of this is cheap."""
        served = self.served
        columns = [
            single(PROXY_UP, int(served is not None)),
            column(RPC_LATENCY, [(_labels(*key), times.copy()) for key, times in self._times.items()]),
            single(WAITING, self._waiting),
        ]
        if served is not None:
            counts = sorted(served.sessions.client_counts().items())
            columns.append(column(CLIENTS, [((wire.ClientType.Name(kind).lower(),), n) for kind, n in counts]))
            columns.append(single(CONNECTIONS, served.connections()))
            columns.append(single(RENEWED, served.sessions.renewed_count()))
            renewals = served.sessions.renewals
            columns.append(column(RENEWALS, [(("ok",), renewals.renewed), (("failed",), renewals.failed)]))
        return columns
        yield  # never reached; it makes this a generator


def _labels(name: str, code: int) -> tuple[str, ...]:
    snake = "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")
    return "grpc", snake, wire.Code.Name(code).lower(), flag(name in _RECEIVES), "success"
