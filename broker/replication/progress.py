"""How a slave's copying goes: slave.py notes it, haStatus tells it."""

from dataclasses import dataclass


@dataclass(slots=True)
class SlaveProgress:
    """``master_addr`` is that of the master's HA port, "" while it is not known. Times are of the wall clock."""

    master_addr: str = ""
    received_bytes: int = 0
    last_read_ms: int = 0
    last_write_ms: int = 0
    #: How far the master's disk has the log, as it said last, or as resetMasterFlushOffset set it.
    master_flush_offset: int = 0
