"""The limits of a server, and what it refused because of them.

A daemon accepts as many connections as the process has descriptors, less those that its files need: without a limit
connections could use up the descriptors, and the store could not open its next file. One network
(mqcommon/addresses.py: an IPv4 address, or a /64 of IPv6) may be limited further: in all, and in new connections a
second.
Neighbours: server.py and channel.py (enforce the limits), daemon.py (raises the soft limit of descriptors).
"""

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.options.fields import BYTES, option
from skylark.remoting.protocol.frame import MAX_FRAME_BYTES

logger = logging.getLogger(__name__)

COMPLAINT_INTERVAL_S = 60.0


@lazy_dataclass(frozen=True)
class ServerLimits:
    """The limits of one server; what exceeds them is refused or closed."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    # A header is decoded before its code is known. A header of this size takes some 30 ms on the event loop.
    max_header_bytes: int = 512 * 1024
    # What connections hold in memory (`BufferBudget`): all connections, and the answers of one connection.
    max_buffered_bytes: int = 512 * 1024 * 1024
    max_answer_bytes: int = 64 * 1024 * 1024
    # Requests that run as tasks: of all connections, and of one connection.
    max_slow_requests: int = 1_000
    max_slow_requests_of_connection: int = 500
    # 0: no limit
    max_requests_a_second: int = 0
    idle_timeout_ms: int = 120_000
    read_timeout_ms: int = 60_000
    write_timeout_ms: int = 20_000


MIB = 1024 * 1024


@lazy_dataclass(frozen=True)
class LimitOptions:
    """Part of the options of both daemons."""

    # --- limits; docs/operate/limits.md tells what happens at each
    max_connections_per_address: int = option(
        0, "most connections from one address, or one /64 of IPv6; 0: no limit", minimum=0
    )
    max_new_connections_per_second: int = option(
        0, "most new connections a second from one address, or one /64 of IPv6; 0: no limit", minimum=0
    )
    max_requests_per_second: int = option(
        0, "most requests a second from one address, or one /64 of IPv6; 0: no limit", minimum=0
    )
    max_requests_in_flight: int = option(
        1_000, "most requests that run as tasks because they wait for something", minimum=1
    )
    max_requests_in_flight_per_connection: int = option(500, "the same, of one connection", minimum=1)
    max_buffered_bytes: int = option(
        512 * MIB,
        "most memory for parts of frames, answers that are not sent yet, and requests that wait",
        unit=BYTES,
        minimum=MIB,
    )
    max_answer_bytes_per_connection: int = option(
        64 * MIB, "most memory for answers that one connection has not taken yet", unit=BYTES, minimum=MIB
    )
    slow_frame_timeout: int = option(
        60_000, "a frame must be whole this long after its first bytes", unit="ms", minimum=2_000
    )
    slow_reader_timeout: int = option(
        20_000, "a peer must take the next 256 KiB of what is sent to it within this time", unit="ms", minimum=2_000
    )

    def server_limits(self, max_frame_bytes: int, max_idle_s: int) -> ServerLimits:
        """The limits as `Server` takes them; both arguments are options that each daemon has already."""
        return ServerLimits(
            max_frame_bytes=max_frame_bytes,
            max_buffered_bytes=within_memory(self.max_buffered_bytes),
            max_answer_bytes=max(self.max_answer_bytes_per_connection, max_frame_bytes),
            max_slow_requests=self.max_requests_in_flight,
            max_slow_requests_of_connection=self.max_requests_in_flight_per_connection,
            max_requests_a_second=self.max_requests_per_second,
            idle_timeout_ms=max_idle_s * 1000,
            read_timeout_ms=self.slow_frame_timeout,
            write_timeout_ms=self.slow_reader_timeout,
        )


def within_memory(max_buffered_bytes: int) -> int:
    """``max_buffered_bytes``, or less: what connections may hold is at most half of the memory of this process."""
    # Not at the top: clients import this module, and elsewhere memory is not limited so.
    from skylark.mqcommon.daemons.memory import memory_limit

    limit = memory_limit()
    most = limit.limit_bytes // 2
    if max_buffered_bytes <= most:
        return max_buffered_bytes
    logger.info("maxBufferedBytes=%d is lowered to %d, half of the memory limit: %s", max_buffered_bytes, most, limit)
    return most


#: What is refused, and what an operator can do about it.
REFUSALS = {
    "accepts_failed": "the process or the machine has too many open files, or too little memory",
    "connections": "see maxConnections",
    "connections_of_address": "see maxConnectionsPerAddress",
    "connection_rate": "see maxNewConnectionsPerSecond",
    "bad_frames": "the peer speaks another protocol, or its frames are longer than frameMaxLength",
    "slow_frames": "a frame did not become whole in time, see slowFrameTimeout",
    "slow_readers": "a peer did not read its answers in time, see slowReaderTimeout",
    "answer_bytes": "a peer does not read its answers, see maxAnswerBytesPerConnection",
    "buffered_bytes": "connections hold too much memory, see maxBufferedBytes",
    "request_rate": "see maxRequestsPerSecond",
    "replays": "a signed request came a second time on its connection: somebody writes into it, so use TLS",
    "requests_in_flight": "too many requests wait, see maxRequestsInFlight and maxRequestsInFlightPerConnection",
}


class Holder(Protocol):
    """What `BufferBudget` sees of a connection."""

    @property
    def buffered_bytes(self) -> int:
        """The bytes that `close` frees."""

    def close(self, reason: str, exceeded: str = "") -> None: ...


class BufferBudget:
    """The memory that all connections of a server may hold together, and what they hold.

    Three things count: buffers of incomplete frames, requests that run as tasks or wait, and answers that are not sent
    yet. Channels count them as they grow, not once in a while: a fast peer sends gigabytes in a second.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self.holders: set[Holder] = set()

    def relieve(self) -> None:
        """Close the largest connections until half of the memory is free.

        Requests that run go on, and keep their memory. Call it while no request is being handled.
        """
        for holder in sorted(self.holders, key=lambda one: one.buffered_bytes, reverse=True):
            if self.used <= self.most // 2 or not holder.buffered_bytes:
                break
            holder.close(f"connections hold more than {self.most} bytes; this is among the largest", "buffered_bytes")


class Refusals:
    """How often each limit was met; each is logged once a minute at most.

    ``hints``: the limits, and what an operator can do about each.
    """

    def __init__(self, hints: Mapping[str, str] = REFUSALS) -> None:
        self._hints = hints
        self.counts = dict.fromkeys(hints, 0)
        self._quiet_until: dict[str, float] = {}
        self._not_logged: Counter[str] = Counter()

    def count(self, kind: str, now: float, remote: str, detail: str) -> None:
        """Count that ``remote`` met limit ``kind``; ``now`` is trio's time in seconds."""
        self.counts[kind] += 1
        if now < self._quiet_until.get(kind, now):
            self._not_logged[kind] += 1
            return
        self._quiet_until[kind] = now + COMPLAINT_INTERVAL_S
        others = self._not_logged.pop(kind, 0)
        more = f"; {others} more since the last such line" if others else ""
        logger.warning("%s: %s (%s)%s", remote, detail, self._hints[kind], more)


MAX_BUCKETS = 10_000


class RateLimit:
    """A token bucket for each network: ``rate`` things a second, and as many at once.

    A bucket holds the tokens of one second. Full buckets are dropped, so their number is bounded by the networks of the
    last second; when even those are too many, the oldest are dropped.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        # tokens and when they were counted, the bucket used last at the end
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str, now: float) -> bool:
        """Take a token of ``key``; False when it has none. ``now`` is in seconds and does not go back."""
        tokens, since = self._buckets.pop(key, (self._rate, now))
        tokens = min(tokens + (now - since) * self._rate, self._rate)
        allowed = tokens >= 1
        self._buckets[key] = (tokens - 1 if allowed else tokens), now
        if len(self._buckets) > MAX_BUCKETS:
            self._drop(now)
        return allowed

    def _drop(self, now: float) -> None:
        """Drop the buckets that are full, and at least a tenth of all."""
        for number, (key, (_, since)) in enumerate(list(self._buckets.items())):
            if number >= MAX_BUCKETS // 10 and now - since < 1:
                break
            del self._buckets[key]


# One event loop cannot serve more connections than this.
MAX_CONNECTIONS = 65_536
# With less, a server refuses clients that a small cluster has.
FEW_DESCRIPTORS = 1_024


class ConnectionBudget:
    """How many connections all ports of a daemon may have together, and how many of them one network (0: no limit)."""

    def __init__(self, most: int, most_of_network: int = 0, new_a_second: int = 0) -> None:
        self.most = most
        self.used = 0
        self._most_of_network = most_of_network
        self._rate = RateLimit(new_a_second) if new_a_second else None
        self._of_network: dict[str, int] = {}

    def take(self, network: str, now: float) -> str:
        """Count a connection until `give`, and return ""; at a limit return the limit's key in `Refusals`."""
        if self._rate is not None and not self._rate.take(network, now):
            return "connection_rate"
        if self.used >= self.most:
            return "connections"
        if self._most_of_network:
            used = self._of_network.get(network, 0)
            if used >= self._most_of_network:
                return "connections_of_address"
            self._of_network[network] = used + 1
        self.used += 1
        return ""

    def give(self, network: str) -> None:
        self.used -= 1
        if self._most_of_network:
            self._of_network[network] -= 1
            if not self._of_network[network]:
                del self._of_network[network]


def connection_budget(wanted: int, files: int, of_network: int = 0, new_a_second: int = 0) -> ConnectionBudget:
    """The budget of a daemon whose files and outgoing connections need up to ``files`` descriptors.

    ``wanted`` is the option maxConnections; 0: as many as possible. The others limit one network; 0: no limit.
    """
    # Not at the top: clients import this module, and Windows has no such limit.
    from skylark.mqcommon.daemons.open_files import open_files_limit

    descriptors = open_files_limit()
    most = most_connections(descriptors, files)
    if descriptors < FEW_DESCRIPTORS:
        logger.warning(
            "open files: limit=%d: few; %d connections are accepted. Raise ulimit -n (systemd: LimitNOFILE)",
            descriptors,
            most,
        )
    if wanted > most:
        logger.warning(
            "maxConnections=%d is more than %d open files (ulimit -n) allow; %d are accepted", wanted, descriptors, most
        )
    return ConnectionBudget(min(wanted, most) if wanted else most, of_network, new_a_second)


def most_connections(descriptors: int, files: int) -> int:
    """All descriptors but those for ``files``, and at least half of all."""
    return min(descriptors - min(files, descriptors // 2), MAX_CONNECTIONS)
