"""What one client may ask of a connection, and how often."""

from skylark.mqcommon.lazy_dataclass import lazy_dataclass

KIB = 1024
MIB = 1024 * KIB


@lazy_dataclass(frozen=True)
class Http2Limits:
    """The limits of one connection.

    A peer that exceeds a rate loses the connection. The first second's number may come at once.
    """

    # The client learns of these limits by SETTINGS.
    max_frame_bytes: int = 16 * KIB
    initial_window_bytes: int = 64 * KIB - 1  # of a stream
    max_concurrent_streams: int = 1_000
    # Counts 32 bytes for each field, as RFC 9113 does. A request with more is refused, and the connection goes on.
    max_header_list_bytes: int = 16 * KIB
    # A longer block, as it is encoded, ends the connection (CVE-2024-27316).
    max_header_block_bytes: int = 64 * KIB
    header_table_bytes: int = 4 * KIB
    # What the client may send before the caller has consumed it, of all streams.
    connection_window_bytes: int = MIB
    # Data that waits for the client's windows, of all streams. The stream that exceeds this limit is reset.
    max_unsent_bytes: int = 64 * MIB
    # Answers to control frames that `take` has not fetched.
    max_control_bytes: int = MIB
    # Streams that the client resets or makes the server reset (CVE-2023-44487, CVE-2025-8671). A client may always
    # cancel all of its concurrent streams at once.
    resets_a_second: int = 200
    # Frames that do nothing: empty DATA and CONTINUATION, unknown kinds, frames of streams that have ended.
    useless_frames_a_second: int = 2_000
    # Each SETTINGS frame may change the window of every stream.
    settings_a_second: int = 30
    # Clients that measure their bandwidth send a PING each round trip.
    pings_a_second: int = 5_000
    priorities_a_second: int = 2_000
    window_updates_a_second: int = 20_000


class Allowance:
    """A token bucket: ``a_second`` things a second, ``burst`` at once."""

    __slots__ = ("_a_second", "_burst", "_left", "_since_s")

    def __init__(self, a_second: int, burst: int) -> None:
        self._a_second = a_second
        self._burst = burst
        self._left: float = burst
        self._since_s: float | None = None

    def take(self, now_s: float) -> bool:
        """Take one; False when none is left."""
        if self._since_s is not None:
            self._left = min(self._left + (now_s - self._since_s) * self._a_second, self._burst)
        self._since_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True
