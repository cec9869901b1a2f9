"""What survives the death of a broker: its log of small records, its epochs, its id."""

from random import Random

from skylark.broker.replication.autoswitch.enrolment import Identified
from skylark.broker.replication.autoswitch.epochs import Epochs

RECORD_BYTES = 8


class Disk:
    """Bytes of ``log`` after ``flushed`` need power. Epochs and ids are written before anything depends on them."""

    def __init__(self) -> None:
        self.log = bytearray()
        self.flushed = 0
        self.epochs = Epochs()
        self.kept: Identified | None = None
        self.temporary: Identified | None = None

    @property
    def end(self) -> int:
        return len(self.log)

    @property
    def last_epoch(self) -> int:
        last = self.epochs.last
        return -1 if last is None else last.epoch

    def lose_power(self, random: Random) -> bool:
        """Whether something was lost."""
        end = random.randint(self.flushed, self.end)
        lost = end < self.end
        del self.log[end:]
        return lost

    def cut(self, offset: int) -> None:
        del self.log[offset:]
        self.epochs.cut_to(offset)
        self.flushed = min(self.flushed, offset)

    def cut_torn_record(self) -> None:
        """A log begins to be written at the end of a whole record only."""
        if self.end % RECORD_BYTES:
            self.cut(self.end - self.end % RECORD_BYTES)

    def recover(self) -> None:
        """Recover as a broker does when it starts."""
        self.cut(self.end - self.end % RECORD_BYTES)
        self.flushed = self.end
