"""What clients of a gRPC server may use."""

from collections.abc import Mapping
from typing import Final

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.http2.limits import Http2Limits
from skylark.remoting.net.limits import REFUSALS, Refusals

MIB: Final = 1024 * 1024


@lazy_dataclass(frozen=True)
class GrpcLimits:
    """The limits of one server; what exceeds them is refused or closed."""

    #: Frames, streams, headers and rates of one connection.
    http2: Http2Limits = Http2Limits()
    #: The largest message of a request, after decompression.
    max_message_bytes: int = 4 * MIB
    #: Whether requests may be compressed; the answers then are, too, if the client reads compressed ones. mqproxy
    #: leaves it off: a request of some kilobytes could expand to grpcMaxInboundMessageSize.
    takes_gzip: bool = False
    #: Calls in progress on all connections; more are answered RESOURCE_EXHAUSTED.
    max_calls: int = 100_000
    #: What all connections hold in memory: requests that are not whole or read, and answers that are not sent.
    max_buffered_bytes: int = 512 * MIB
    #: Answers that one connection has not taken yet.
    max_answer_bytes: int = 64 * MIB
    #: A connection must have begun (TLS, then HTTP/2) within this time.
    first_bytes_timeout_ms: int = 10_000
    #: A frame and a block of headers must be whole this long after their first bytes, and the request of a unary call
    #: this long after its headers.
    request_timeout_ms: int = 60_000
    #: A client must take some bytes of what waits for it within this time, and the rest of an ended call, too.
    write_timeout_ms: int = 20_000
    #: Connections without a call in progress for this long are asked to close.
    idle_timeout_ms: int = 120_000
    #: A client that was silent for this long gets a ping, and must send something within the timeout.
    ping_interval_ms: int = 60_000
    ping_timeout_ms: int = 20_000
    #: Clients that ping more often, and get no answers meanwhile, are disconnected: with a call in progress, and
    #: without.
    min_ping_interval_ms: int = 5_000
    min_idle_ping_interval_ms: int = 5_000


_SHARED: Final = (
    "accepts_failed",
    "connections",
    "connections_of_address",
    "connection_rate",
    "slow_frames",
    "slow_readers",
)

#: What is refused, and what an operator can do about it; the keys of `Refusals`.
REFUSED: Final[Mapping[str, str]] = {
    **{name: REFUSALS[name] for name in _SHARED},
    "bad_frames": "the peer speaks another protocol, or sends more frames than gRPC's clients do",
    "silent": "a peer did not begin to speak in time, or does not answer pings: check the peer and the network",
    "answer_bytes": "a peer does not read its answers: check whether it hangs",
    "buffered_bytes": "connections hold too much memory, see maxConnectionsPerAddress and grpcMaxInboundMessageSize",
    "calls": "too many calls are in progress, see grpcThreadPoolQueueCapacity",
    "pings": "a peer pings too often, see grpcServerPermitKeepAliveTimeMillis",
}


class CallBudget:
    """How many calls may be in progress on all connections of a server, and how many are."""

    def __init__(self, most: int, refusals: Refusals) -> None:
        self.most = most
        self.used = 0
        self._refusals = refusals

    def refused(self, remote: str, now_s: float) -> None:
        """A call of ``remote`` came at the limit."""
        self._refusals.count("calls", now_s, remote, f"call refused: {self.used} are in progress")
