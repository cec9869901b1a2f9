"""The options of both daemons that protect them from peers that ask or hold too much."""

from dataclasses import dataclass

from mqcommon.options.fields import option
from remoting.net.limits import ServerLimits

MIB = 1024 * 1024


@dataclass(frozen=True)
class LimitOptions:
    """Part of the options of both daemons."""

    # --- limits; docs/operations.md tells what happens at each
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
        512 * MIB, "most memory for parts of frames, answers that are not sent yet, and requests that wait",
        unit="bytes", minimum=MIB,
    )  # fmt: skip
    max_answer_bytes_per_connection: int = option(
        64 * MIB, "most memory for answers that one connection has not taken yet", unit="bytes", minimum=MIB
    )
    slow_frame_timeout: int = option(
        60_000, "a frame must be whole this long after its first bytes", unit="ms", minimum=2_000
    )
    slow_reader_timeout: int = option(
        20_000, "a peer must take what is sent to it within this time", unit="ms", minimum=2_000
    )

    def server_limits(self, max_frame_bytes: int, max_idle_s: int) -> ServerLimits:
        """As `Server` takes them; the two are options that each daemon has already."""
        return ServerLimits(
            max_frame_bytes=max_frame_bytes,
            max_buffered_bytes=self.max_buffered_bytes,
            max_answer_bytes=max(self.max_answer_bytes_per_connection, max_frame_bytes),
            max_slow_requests=self.max_requests_in_flight,
            max_slow_requests_of_connection=self.max_requests_in_flight_per_connection,
            max_requests_a_second=self.max_requests_per_second,
            idle_timeout_ms=max_idle_s * 1000,
            read_timeout_ms=self.slow_frame_timeout,
            write_timeout_ms=self.slow_reader_timeout,
        )
