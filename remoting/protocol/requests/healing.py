"""What replicas ask of each other to heal their logs, Skylark's own: sums of blocks (7160), and bytes (7161)."""

from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.rights import UPDATE_CLUSTER
from skylark.remoting.protocol.scalars import read_flag, read_long

#: Limits of one request.
MAX_SUMS = 1_024
MAX_READ_BYTES = 1024 * 1024


@lazy_dataclass(slots=True)
class LogSumsRequestHeader(Header):
    """7160: the sums of the blocks with bytes from the physical offset ``start`` to ``end``, at most `MAX_SUMS` blocks.

    The body has the asker's own sums of these blocks (broker/store/sums/sum_rows.py), or nothing.
    """

    start: int = required(read_long)
    end: int = required(read_long)


@lazy_dataclass(slots=True)
class LogLimitHeader(Header):
    """The answer to 7160: bytes before the physical offset ``limit`` are confirmed there. The body has the sums."""

    limit: int = required(read_long)


@lazy_dataclass(slots=True)
class ReadLogRequestHeader(Header):
    """7161: ``size`` bytes of the log from the physical offset ``start`` on, at most `MAX_READ_BYTES` of one file.

    ``summed``: where the block begins whose sum the answer should have; -1: no sum is wanted.
    """

    start: int = required(read_long)
    size: int = required(read_long)
    summed: int = required(read_long)


@lazy_dataclass(slots=True)
class ReadLogHeader(Header):
    """The answer to 7161, with the bytes: fewer at the limit of 7160, or before bytes that the disk there cannot read.

    ``crc``: the sum of the block, if the block has a sum there; ``is_attested``: another replica has the same sum.
    Without ``is_current`` the bytes may be damaged, or cut from the set's log: only a sum proves them.
    """

    limit: int = required(read_long)
    is_current: bool = required(read_flag)
    crc: int | None = optional(read_long)
    is_attested: bool | None = optional(read_flag)


LOG_SUMS = Request(7160, LogSumsRequestHeader, bytes, LogLimitHeader, bytes, right=UPDATE_CLUSTER)
READ_LOG = Request(7161, ReadLogRequestHeader, NOTHING, ReadLogHeader, bytes, right=UPDATE_CLUSTER)
