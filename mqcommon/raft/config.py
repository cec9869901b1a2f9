"""What the application chooses for a node."""

from collections.abc import Callable
from dataclasses import field
from random import Random

from skylark.mqcommon.lazy_dataclass import lazy_dataclass


@lazy_dataclass(frozen=True, slots=True)
class Config:
    """Settings of a node. ``random`` spreads the elections of the nodes; times are in the unit of ``tick``.

    A follower stands for election when it hears nothing of a leader for one to two times ``election_ms``. A leader
    that hears nothing of a majority for ``election_ms`` gives up.
    """

    node: str
    random: Random = field(default_factory=Random)
    election_ms: int = 1000
    heartbeat_ms: int = 100
    # The most bytes of entries in one append request; a single longer entry is sent all the same.
    max_append_bytes: int = 1 << 20
    # The most bytes that are sent to one follower and not answered.
    max_in_flight_bytes: int = 8 << 20
    max_in_flight_requests: int = 64
    # The most bytes of entries that are taken and not committed yet; beyond that, proposals are refused.
    max_uncommitted_bytes: int = 64 << 20
    # A learner that lacks more entries than this is not promoted.
    promotion_lag: int = 1000
    # Tell members of each commit at once. Otherwise they learn of it with the next entries, or with a heartbeat.
    tells_commits: bool = True
    # How many bytes an entry with this data has when it is sent: the data may only name bytes that are kept elsewhere.
    travelling_bytes: Callable[[bytes], int] = len
