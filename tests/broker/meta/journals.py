"""Journals of numbers on a disk in memory."""

from typing import Any

from broker.meta.journal import Journal, JournalReport
from tests.broker.meta.support import DIRECTORY
from tests.support.memory_files import MemoryFiles

FIRST = f"{DIRECTORY}/metadata.journal.0"
SECOND = f"{DIRECTORY}/metadata.journal.1"
SNAPSHOT = f"{DIRECTORY}/metadata.snapshot.1"


def reopen(fs: MemoryFiles) -> tuple[Journal, list[Any], JournalReport]:
    records: list[Any] = []
    journal = Journal(fs, DIRECTORY)
    report = journal.replay(lambda kind, payload: records.append((kind, payload)))
    return journal, records, report


def fresh(fs: MemoryFiles, count: int = 0) -> Journal:
    journal = reopen(fs)[0]
    for number in range(count):
        journal.append("n", number)
    return journal


def numbers(count: int) -> list[tuple[str, int]]:
    return [("n", number) for number in range(count)]


def damage(fs: MemoryFiles, path: str, place: int) -> None:
    data = bytearray(fs.read(path))
    data[place] ^= 0xFF
    fs.overwrite(path, bytes(data))
