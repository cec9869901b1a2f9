"""The progress of a slave's copying: slave.py updates it, haStatus shows it."""

from dataclasses import dataclass


@dataclass(slots=True)
class SlaveProgress:
    """``master_addr`` is the address of the master's HA port, "" while unknown. Times are of the wall clock."""

    master_addr: str = ""
    received_bytes: int = 0
    last_read_ms: int = 0
    last_write_ms: int = 0
    #: How far the log is on the master's disk: its last report, or the value set by resetMasterFlushOffset.
    master_flush_offset: int = 0
