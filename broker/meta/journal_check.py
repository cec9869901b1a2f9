"""Finds damage in the metadata journal of a stopped broker. Read only. Neighbour: journal.py (recovers it)."""

from collections.abc import Iterator
from typing import NamedTuple

from broker.meta.journal_format import scan
from broker.meta.journal_paths import JournalPaths
from mqcommon.disk.files import FileSystem


class JournalDamage(NamedTuple):
    """``rotten``: the bytes were on disk, so the next start stops there. Otherwise a torn tail, which it cuts."""

    file: str
    offset: int
    reason: str
    rotten: bool


def check_journal(fs: FileSystem, directory: str) -> Iterator[JournalDamage]:
    """All damage in the newest snapshot and the journals after it."""
    paths = JournalPaths(directory)
    listing = paths.listing(fs)
    base = max(listing.snapshots, default=0)
    if base:
        path = paths.snapshot(base)
        found = scan(fs.read(path), base)
        if found.damage:
            yield JournalDamage(path, found.good_bytes, found.damage, rotten=True)
    numbers = [number for number in listing.journals if number >= base]
    for number in numbers:
        path = paths.journal(number)
        found = scan(fs.read(path), number)
        if found.damage:
            rotten = found.rotten or number != numbers[-1]
            note = "" if rotten else "; a torn tail, which the next start cuts"
            yield JournalDamage(path, found.good_bytes, found.damage + note, rotten)
