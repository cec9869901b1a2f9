"""What the healing of the log has found and done since the broker's start."""

from dataclasses import dataclass, field

# A disk that damages more blocks than this within a cycle of the scrub should be replaced.
MAX_REPAIRED_A_CYCLE = 16


@dataclass
class HealingFigures:
    """Counts of blocks, each up to 256 KiB of the log."""

    #: Blocks that were written again, and their bytes that were wrong.
    blocks_repaired: int = 0
    bytes_repaired: int = 0
    #: Blocks that were wrong in memory only.
    memory_only: int = 0
    #: Blocks whose direct reads differed from one another.
    unstable: int = 0
    #: Blocks that the disk could not read.
    unreadable: int = 0
    #: Blocks that the disk has refused to write, so that their file was made anew.
    files_made_anew: int = 0
    #: Starts of the blocks that are damaged now: nobody could say which bytes are right, or they cannot be written.
    damaged: set[int] = field(default_factory=set)
    #: The blocks of `damaged` whose files somebody has removed, by the paths of the files.
    of_missing_files: dict[str, set[int]] = field(default_factory=dict)
    #: Repaired, unstable or damaged in the present cycle of the scrub.
    bad_in_cycle: int = 0

    @property
    def unrepaired(self) -> int:
        """How many blocks are damaged now."""
        return len(self.damaged)

    @property
    def is_disk_failing(self) -> bool:
        """Whether the disk has damaged so much in this cycle that this broker should not lead a set."""
        return self.bad_in_cycle > MAX_REPAIRED_A_CYCLE

    def begin_cycle(self) -> None:
        """The scrub begins anew."""
        left = {path: starts & self.damaged for path, starts in self.of_missing_files.items()}
        self.of_missing_files = {path: starts for path, starts in left.items() if starts}
        # A file that is missing is one problem, and not one of the disk: not thousands of bad blocks.
        missing = sum(map(len, self.of_missing_files.values()))
        self.bad_in_cycle = len(self.damaged) - missing + len(self.of_missing_files)
