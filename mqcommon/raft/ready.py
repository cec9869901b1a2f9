"""What a node wants its driver to do. The driver does it in this order.

1. ``messages`` may be sent at once.
2. ``persist`` goes to disk, with one fsync; then ``Persist.messages`` are sent and ``persisted`` is called. Meanwhile
   the node may be given messages and ticks, and ``ready`` be called; there is one ``persist`` at a time.
3. ``restore`` replaces the application's state; its file is part of ``persist``.
4. ``committed`` is applied in its order.
5. ``reads`` are answered when what they name is applied.
"""

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.raft.messages import RaftEntry, RaftMessage, Snapshot


@lazy_dataclass(frozen=True, slots=True)
class HardState:
    """What a node must not forget: otherwise it could vote twice in a term."""

    term: int = 0
    vote: str = ""


@lazy_dataclass(frozen=True, slots=True)
class Persist:
    """What to write. ``entries`` replace all stored entries from their first index on; ``snapshot`` the whole log."""

    hard_state: HardState | None
    entries: tuple[RaftEntry, ...]
    snapshot: Snapshot | None
    messages: tuple[RaftMessage, ...]


@lazy_dataclass(frozen=True, slots=True)
class Read:
    """The read ``context`` sees everything once ``index`` is applied; None: this node cannot promise it."""

    context: object
    index: int | None


@lazy_dataclass(frozen=True, slots=True)
class Ready:
    messages: tuple[RaftMessage, ...]
    persist: Persist | None
    restore: Snapshot | None
    committed: tuple[RaftEntry, ...]
    reads: tuple[Read, ...]
