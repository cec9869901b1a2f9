"""Names of the journal's files, and which of them are in a directory."""

import re
from dataclasses import dataclass

from mqcommon.disk.files import FileSystem

_NAME = re.compile(r"metadata\.(journal|snapshot)\.(\d{1,18})(\.tmp)?")


@dataclass(frozen=True, slots=True)
class Listing:
    """Numbers of the files present, in order; ``half_written``: paths of unfinished snapshots."""

    journals: list[int]
    snapshots: list[int]
    half_written: list[str]


@dataclass(frozen=True, slots=True)
class JournalPaths:
    directory: str

    def journal(self, number: int) -> str:
        return f"{self.directory}/metadata.journal.{number}"

    def snapshot(self, number: int) -> str:
        return f"{self.directory}/metadata.snapshot.{number}"

    def half_snapshot(self, number: int) -> str:
        return f"{self.snapshot(number)}.tmp"

    def listing(self, fs: FileSystem) -> Listing:
        found = Listing([], [], [])
        for name in fs.listdir(self.directory):
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            kind, number, half = match.groups()
            if half:
                found.half_written.append(f"{self.directory}/{name}")
            else:
                (found.journals if kind == "journal" else found.snapshots).append(int(number))
        found.journals.sort()
        found.snapshots.sort()
        return found

    def older(self, listing: Listing, base: int) -> list[str]:
        """Paths of the files that snapshot ``base`` replaces."""
        journals = [self.journal(n) for n in listing.journals if n < base]
        return journals + [self.snapshot(n) for n in listing.snapshots if n < base]
